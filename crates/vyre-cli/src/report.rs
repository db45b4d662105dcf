//! HTML pages of `--html`.

use std::path::Path;

use serde_json::Value;
use vyre::explain;

use crate::error::Error;
use crate::outputs::Target;

/// The file of `--html`.
pub(crate) fn target(file: Option<&Path>) -> Result<Option<Target>, Error> {
    file.map(|file| Target::find_like(file, "<!DOCTYPE html>")).transpose()
}

/// Writes a page. `views` has a key for each view.
pub(crate) fn write(file: &Target, title: &str, subtitle: &str, views: Value) -> Result<(), Error> {
    file.write(explain::page(title, subtitle, views).as_bytes())
}
