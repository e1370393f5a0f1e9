//! Files in the body of a request. The texts of large files are never copied: they stay in the body
//! and are decoded piece by piece while they are written, so that a file takes its size once.

use std::borrow::Cow;

use bytes::Bytes;
use engine::Use;
use model::Refusal;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;

use super::bounded_json;
use super::deploy::inner_path;
use super::errors::AshError;
use super::fields::Fields;
use super::files::WORKSPACE;

const FILES_MAX: usize = 500;
const FILE_BYTES_MAX: u64 = 50 << 20;
const TOTAL_BYTES_MAX: u64 = 100 << 20;
const PATH_CHARS_MAX: usize = 4096;
/// How much text is decoded at once: a multiple of four.
const PIECE_CHARS: usize = 64 << 10;

/// Files that are sent.
pub(super) struct Uploads {
    /// Beneath which they go: nothing, or with a slash at its end.
    pub(super) target: String,
    pub(super) files: Vec<Upload>,
}

/// The body, with its fields as they were sent.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    files: Option<&'a RawValue>,
    #[serde(borrow, rename = "targetPath")]
    target: Option<&'a RawValue>,
}

/// One of the files, with its fields as they were sent.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    path: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// An object; a list is none, although its items could be taken for the fields.
fn object<'a, T: Deserialize<'a>>(text: &'a [u8], at: &str) -> Result<T, AshError> {
    let read = Some(text).filter(|text| text.trim_ascii_start().starts_with(b"{"));
    let read = read.and_then(|text| serde_json::from_slice(text).ok());
    read.ok_or_else(|| AshError::invalid(format!("{at} must be object")))
}

/// A field that is small, to be read as everywhere else.
fn field(at: &'static str, name: &str, raw: Option<&RawValue>) -> Result<Fields, AshError> {
    let value = raw.map(|raw| serde_json::from_str::<Value>(raw.get())).transpose();
    let value = value.map_err(|error| AshError::invalid(error.to_string()))?;
    let map: Map<_, _> = value.map(|value| (name.to_owned(), value)).into_iter().collect();
    Fields::inner(Value::Object(map), at)
}

impl Uploads {
    pub(super) fn of(body: &Bytes) -> Result<Self, AshError> {
        bounded_json::check(body)
            .map_err(|error| AshError::invalid(format!("Body is not valid JSON: {error}")))?;
        let sent: Body<'_> = object(body, "body")?;
        let target =
            field("body", "targetPath", sent.target)?.text("targetPath", PATH_CHARS_MAX)?;
        let target = match target.as_deref() {
            None | Some("." | "" | "./") => String::new(),
            Some(given) => {
                let inner =
                    inner_path(given).ok_or_else(|| AshError::new(400, "Invalid target path"))?;
                format!("{inner}/")
            }
        };
        let Some(list) = sent.files else {
            return Err(AshError::invalid("body must have required property 'files'"));
        };
        let not_a_list = |_| AshError::invalid("body/files must be array");
        let list: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(not_a_list)?;
        if list.is_empty() || list.len() > FILES_MAX {
            let cause = format!("body/files must have from 1 to {FILES_MAX} items");
            return Err(AshError::invalid(cause));
        }
        let mut room = TOTAL_BYTES_MAX;
        let files = list.into_iter().map(|item| Upload::new(body, item, &mut room));
        Ok(Self { target, files: files.collect::<Result<_, _>>()? })
    }
}

/// One of them.
pub(super) struct Upload {
    pub(super) path: String,
    /// Valid base64, or why it cannot be written.
    content: Result<Bytes, &'static str>,
}

impl Upload {
    fn new(body: &Bytes, item: &RawValue, room: &mut u64) -> Result<Self, AshError> {
        const AT: &str = "body/files/item";
        let item: Item<'_> = object(item.get().as_bytes(), AT)?;
        let path = field(AT, "path", item.path)?.required_text("path", PATH_CHARS_MAX)?;
        let Some(content) = item.content else {
            return Err(AshError::invalid(format!("{AT} must have required property 'content'")));
        };
        let not_a_text = |_| AshError::invalid(format!("{AT}/content must be string"));
        let text: Text<'_> = serde_json::from_str(content.get()).map_err(not_a_text)?;
        let text = match text.0 {
            Cow::Borrowed(text) => body.slice_ref(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        };
        let content = match size_of(&text) {
            Some(size) if takes(room, size) => Ok(text),
            Some(_) => Err("File too large"),
            None => Err("Invalid base64 content"),
        };
        Ok(Self { path, content })
    }

    /// An error of one file is reported for that file, and the others are written.
    pub(super) async fn write(&self, used: &Use, target: &str) -> Result<u64, String> {
        let inner = inner_path(&self.path).ok_or("Invalid file path")?;
        let text = self.content.as_ref().map_err(|why| (*why).to_owned())?;
        let path = format!("{WORKSPACE}/{target}{inner}");
        let failed = |refusal: Refusal| refusal.cause.into_owned();
        if let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| *above != WORKSPACE) {
            used.make_directory(above, true).await.map_err(failed)?;
        }
        let mut writer = used.write_file(&path, None).await.map_err(failed)?;
        for piece in pieces(text) {
            let piece = piece.ok_or("Invalid base64 content")?;
            if let Err(error) = writer.write_all(&piece).await {
                return Err(failed(used.explain(error).await));
            }
        }
        let entry = used.finish_file(writer).await.map_err(failed)?;
        Ok(entry.size)
    }
}

/// Takes the size of a file from the room that is left, if the file is not too large.
const fn takes(room: &mut u64, size: u64) -> bool {
    let fits = size <= FILE_BYTES_MAX && size <= *room;
    if fits {
        *room -= size;
    }
    fits
}

/// A text that is borrowed unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The pieces of a base64 text; none in place of one that is wrong.
fn pieces(text: &[u8]) -> impl Iterator<Item = Option<Vec<u8>>> {
    let last = text.len().div_ceil(PIECE_CHARS).saturating_sub(1);
    text.chunks(PIECE_CHARS).enumerate().map(move |(at, piece)| {
        // Padding ends the text, not a piece of it.
        let is_padded_early = at < last && piece.ends_with(b"=");
        let piece = str::from_utf8(piece).ok().filter(|_| !is_padded_early)?;
        wire::from_base64(piece).ok()
    })
}

/// The size of what a base64 text stands for; none if it is none.
fn size_of(text: &[u8]) -> Option<u64> {
    pieces(text).try_fold(0, |size, piece| Some(size + piece?.len() as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn uploads(body: &Value) -> Result<Uploads, AshError> {
        Uploads::of(&Bytes::from(body.to_string()))
    }

    #[test]
    fn large_files_are_not_copied_and_pieces_fit_together() {
        let bytes: Vec<u8> = (0..200_001_u32).map(|n| n.to_le_bytes()[0]).collect();
        let text = wire::to_base64(&bytes);
        let body = Bytes::from(json!({"files": [{"path": "a", "content": text}]}).to_string());
        let sent = Uploads::of(&body).unwrap_or_else(|error| panic!("{error:?}"));
        let content = sent.files[0].content.as_ref().unwrap();
        let range = body.as_ptr_range();
        assert!(range.contains(&content.as_ptr()), "it lies in the body");
        let decoded: Vec<u8> = pieces(content).flat_map(Option::unwrap).collect();
        assert_eq!(decoded, bytes);
        assert_eq!(size_of(content), Some(200_001));
        let escaped = Bytes::from(r#"{"files":[{"path":"a","content":"\/\/8="}]}"#);
        let sent = Uploads::of(&escaped).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(sent.files[0].content.as_deref(), Ok(&b"//8="[..]));
    }

    #[test]
    fn text_that_is_not_base64_is_found_wherever_it_is() {
        for wrong in ["*", "QQ", "QQ=", "QQ==QQ==", "QR==", "Q Q="] {
            assert_eq!(size_of(wrong.as_bytes()), None, "{wrong}");
        }
        let early = format!("{}QQ=={}", "A".repeat(PIECE_CHARS - 4), "A".repeat(8));
        assert_eq!(size_of(early.as_bytes()), None, "padding in the middle");
        assert_eq!(size_of(b""), Some(0));
        assert_eq!(size_of(b"QQ=="), Some(1));
    }

    #[test]
    fn files_above_the_limits_are_refused_one_by_one() {
        let mut room = TOTAL_BYTES_MAX;
        assert!(!takes(&mut room, FILE_BYTES_MAX + 1));
        assert!(takes(&mut room, FILE_BYTES_MAX) && takes(&mut room, FILE_BYTES_MAX));
        assert!(!takes(&mut room, 1) && takes(&mut room, 0), "a refused file takes no room");
    }

    #[test]
    fn requests_of_another_form_are_refused_with_the_field() {
        for (body, expected) in [
            (json!([]), "body must be object"),
            (json!({}), "body must have required property 'files'"),
            (json!({"files": null}), "body must have required property 'files'"),
            (json!({"files": "a"}), "body/files must be array"),
            (json!({"files": []}), "body/files must have from 1 to 500 items"),
            (json!({"files": [1]}), "body/files/item must be object"),
            (json!({"files": [{"content": ""}]}), "required property 'path'"),
            (json!({"files": [{"path": "a"}]}), "required property 'content'"),
            (json!({"files": [{"path": 1, "content": ""}]}), "body/files/item/path must be string"),
            (json!({"files": [{"path": "a", "content": 1}]}), "item/content must be string"),
            (json!({"files": [{"path": "a", "content": ""}], "targetPath": 1}), "targetPath must"),
            (json!({"files": [{"path": "a", "content": ""}], "targetPath": "../x"}), "target path"),
        ] {
            let error = uploads(&body).map(drop).unwrap_err();
            assert!(format!("{error:?}").contains(expected), "{body}: {error:?}");
        }
    }
}
