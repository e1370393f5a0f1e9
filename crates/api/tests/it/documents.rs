//! Documents that are made from the code are those in the repository.

use std::path::Path;

#[track_caller]
fn is_current(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/{name} is not what the code says; make it anew:\n    \
         UPDATE_DOCS=1 cargo test -p api --test it documents"
    );
}

#[test]
fn the_openapi_document_is_current() {
    is_current("openapi.json", &api::openapi::made_document());
}

#[test]
fn the_pages_of_error_codes_are_current() {
    is_current("errors.md", &api::errors::document());
}

#[test]
fn every_code_has_a_section_of_its_own() {
    let pages = api::errors::document();
    for code in model::ErrorCode::ALL {
        assert_eq!(pages.matches(&format!("\n## {code}\n")).count(), 1, "{code}");
    }
}
