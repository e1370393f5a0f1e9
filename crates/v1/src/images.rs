//! Images: root filesystems that templates name. Any key may read them; only administrators may
//! import and remove them.

use axum::extract::{Request, State};
use axum::response::Response;
use engine::ImageRequest;
use http::StatusCode;
use model::{ErrorCode, ImageName};
use wire::{ImageList, ImageRemoved};

use web::answer;
use web::app::App;
use web::body_reader;
use web::front::Needs;
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::{ImageReference, Named};
use web::query::{NoQuery, Query};
use web::refused::Refused;

/// The format of the body is detected from its contents.
const ARCHIVES: &[&str] =
    &["application/octet-stream", "application/x-tar", "application/gzip", "application/zstd"];
const REFERENCE_CHARS_MAX: usize = 500;

const NAME: Param = Param::new(
    "name",
    Kind::Schema("ImageName"),
    "Its name; another image with this name loses it",
)
.required();
const REFERENCE: Param = Param::new(
    "reference",
    Kind::Text,
    "Which image, by its name in the archive, if there are several",
);
const FORCE: Param = Param::new(
    "force",
    Kind::Flag,
    "Also if sandboxes use it: its files stay until those have ended",
);

const LOOKING: &[ErrorCode] = &[ErrorCode::ImageUnknown, ErrorCode::Unsupported];
const BRINGING: &[ErrorCode] = &[
    ErrorCode::ImageInvalid,
    ErrorCode::InvalidArgument,
    ErrorCode::Unsupported,
    ErrorCode::Aborted,
    ErrorCode::StoreUnavailable,
];
const REMOVING: &[ErrorCode] = &[
    ErrorCode::ImageUnknown,
    ErrorCode::ImageInvalid,
    ErrorCode::ImageInUse,
    ErrorCode::Unsupported,
    ErrorCode::StoreUnavailable,
];

pub(super) fn routes() -> Vec<Route> {
    let import = Operation::new(
        "import_image",
        "Import an image: a tar archive of a root, an OCI layout in one, or what `docker save` wrote; plain, gzip or zstd",
    )
    .answers(201, "The image", [json("Image")])
    .takes(Takes::Bytes(ARCHIVES));
    let list = Operation::new("list_images", "All images").answers(
        200,
        "The images in the order of their names, those without a name last",
        [json("ImageList")],
    );
    let get = Operation::new("get_image", "Get an image by its name, its id or a prefix of its id")
        .answers(200, "The image", [json("Image")]);
    let delete = Operation::new(
        "delete_image",
        "Remove a name of an image, or all names by its id, and delete layers that are no longer used",
    )
    .answers(200, "What was removed", [json("ImageRemoved")]);
    let (all, one) = ("/v1/images", "/v1/images/{image}");
    vec![
        Route::new(
            Verb::Post,
            all,
            Needs::Admin,
            self::import,
            import.query([NAME, REFERENCE]).refuses(BRINGING),
        ),
        Route::new(
            Verb::Get,
            all,
            Needs::Read,
            self::list,
            list.refuses(&[ErrorCode::Unsupported]),
        ),
        Route::new(
            Verb::Get,
            one,
            Needs::Read,
            read,
            get.refuses(LOOKING).refuses(&[ErrorCode::ImageInvalid]),
        ),
        Route::new(
            Verb::Delete,
            one,
            Needs::Admin,
            remove,
            delete.query([FORCE]).refuses(REMOVING),
        ),
    ]
}

async fn import(
    State(app): State<App>,
    mut query: Query,
    request: Request,
) -> Result<Response, Refused> {
    let name = query.required("name")?;
    let name = ImageName::new(&name)
        .map_err(|error| Refused::invalid("name", format!("name: {error}")))?;
    let reference = query.text("reference")?;
    query.done()?;
    if reference.as_ref().is_some_and(|text| text.chars().count() > REFERENCE_CHARS_MAX) {
        let cause = format!("reference: more than {REFERENCE_CHARS_MAX} characters");
        return Err(Refused::invalid("reference", cause));
    }
    let (feeding, archive) = body_reader::split(request.into_body(), &app.settings);
    let request = ImageRequest { name, reference, archive: Box::new(archive) };
    let importing = app.engine.import_image(request);
    let (fed, imported) = tokio::join!(feeding, importing);
    // An error of the request is also the cause of the archive's error.
    fed?;
    answer::json(StatusCode::CREATED, &wire::Image::from(imported?))
}

async fn list(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    let images = app.engine.images().await?;
    answer::ok(&ImageList { images: images.into_iter().map(wire::Image::from).collect() })
}

async fn read(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(ImageReference(image)): Named<ImageReference>,
) -> Result<Response, Refused> {
    answer::ok(&wire::Image::from(app.engine.image(&image).await?))
}

async fn remove(
    State(app): State<App>,
    mut query: Query,
    Named(ImageReference(image)): Named<ImageReference>,
) -> Result<Response, Refused> {
    let force = query.flag("force")?;
    query.done()?;
    let removed = app.engine.remove_image(&image, force).await?;
    answer::ok(&ImageRemoved {
        id: removed.id,
        names: removed.names,
        layers: removed.collected.layers as u64,
        bytes: removed.collected.bytes,
    })
}
