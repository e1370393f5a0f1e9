//! The files that a session begins with, as a request carries them: each with a path beneath the
//! workspace and its contents as text or base64. The engine checks the paths when it stores them.

use engine::SeedFile;
use wire::{SessionFile, SessionRequest};

use web::octal::octal;
use web::refused::Refused;

const MODE: u32 = 0o644;

/// The files, if each is one.
pub(crate) fn files(given: Vec<SessionFile>) -> Result<Vec<SeedFile>, Refused> {
    let most = SessionRequest::FILES_MAX;
    if given.len() > most {
        return Err(Refused::invalid("files", format!("files: at most {most} files can be given")));
    }
    given.into_iter().enumerate().map(|(at, one)| file(at, one)).collect()
}

fn file(at: usize, given: SessionFile) -> Result<SeedFile, Refused> {
    let wrong = |field: &str, cause: &str| {
        let field = format!("files[{at}].{field}");
        Err(Refused::invalid(field.clone(), format!("{field}: {cause}")))
    };
    let SessionFile { path, content, content_base64, mode } = given;
    let bytes = match (content, content_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => match wire::from_base64(&text) {
            Ok(bytes) => bytes,
            Err(error) => return wrong("content_base64", &error.to_string()),
        },
        (None, None) => Vec::new(),
        (Some(_), Some(_)) => return wrong("content", "must be text or base64, not both"),
    };
    let mode = match mode.as_deref().map(octal) {
        None => MODE,
        Some(Some(mode)) => mode,
        Some(None) => return wrong("mode", "is not an octal number up to 7777"),
    };
    // A path that begins with / is beneath the workspace, too.
    let path = path.strip_prefix("/workspace/").map_or_else(|| path.clone(), str::to_owned);
    Ok(SeedFile { path, bytes, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(content: Option<&str>, base64: Option<&str>, mode: Option<&str>) -> SessionFile {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let (content, content_base64) = (text(content), text(base64));
        SessionFile { path: "a".to_owned(), content, content_base64, mode: text(mode) }
    }

    #[test]
    fn seed_files_are_read_from_a_request() {
        for (one, expected) in [
            (given(Some("hi"), None, None), Ok((&b"hi"[..], 0o644))),
            (given(None, Some("/w=="), Some("0755")), Ok((&[0xff][..], 0o755))),
            (given(None, None, None), Ok((&b""[..], 0o644))),
            (given(Some("a"), Some("YQ=="), None), Err("files[1].content")),
            (given(None, Some("a"), None), Err("files[1].content_base64")),
            (given(None, None, Some("rw")), Err("files[1].mode")),
        ] {
            let read = files(vec![given(None, None, None), one.clone()]);
            let read = read.as_ref().map(|files| (&*files[1].bytes, files[1].mode));
            let read = read.map_err(|refused| refused.field.as_deref().unwrap());
            assert_eq!(read, expected, "{one:?}");
        }
        let many = vec![SessionFile::default(); SessionRequest::FILES_MAX + 1];
        assert_eq!(files(many).unwrap_err().field.as_deref(), Some("files"));
        let whole = SessionFile { path: "/workspace/b/c".to_owned(), ..SessionFile::default() };
        assert_eq!(files(vec![whole]).unwrap()[0].path, "b/c");
    }
}
