//! The page that `--html` writes: one file, which asks for nothing else.
//!
//! ```text
//! what --json prints ┐
//! History, emitted   ├→ one JSON value → page.html, with page.css, page.js and the value in it
//! what a trace has   ┘
//! ```
//!
//! A program is shown after each pass that changed it. Texts of large programs are kept as the lines that differ.

mod diff;
mod history;

use std::path::Path;

use serde_json::{Value, json};

use crate::error::Error;
use crate::outputs::Target;

pub(crate) use history::History;

/// The file for a page, if there is to be one.
pub(crate) fn target(file: Option<&Path>) -> Result<Option<Target>, Error> {
    file.map(|file| Target::find_like(file, "<!DOCTYPE html>")).transpose()
}

/// Writes the page about something. `what` has a key for each view.
pub(crate) fn write(file: &Target, title: &str, subtitle: &str, mut what: Value) -> Result<(), Error> {
    what["title"] = title.into();
    what["subtitle"] = subtitle.into();
    file.write(page(title, &what).as_bytes())
}

fn page(title: &str, data: &Value) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    // Inside of a script, only this could end it; in JSON it stands in strings only.
    let data = data.to_string().replace('<', "\\u003c");
    let mut page = String::new();
    let mut rest = include_str!("page.html");
    for (mark, contents) in [
        ("{{title}}", format!("vyre: {title}").as_str()),
        ("{{style}}\n", include_str!("page.css")),
        ("{{data}}", &data),
        ("{{script}}\n", include_str!("page.js")),
    ] {
        let (before, after) = rest.split_once(mark).expect("the page has a place for each part");
        page += before;
        page += contents;
        rest = after;
    }
    page + rest
}

/// A language that a program was printed in, or why it cannot be.
pub(crate) fn emitted(name: &str, result: Result<String, Error>) -> Value {
    let text = result.unwrap_or_else(|error| format!("// {error}\n// {}", error.help()));
    json!({ "name": name, "text": text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_data_ends_the_script() {
        let evil = "</script><script>alert(1)</script><!-- {{script}} & \u{2028}";
        let page = page(evil, &json!({ "text": evil }));
        assert_eq!(page.matches("</script>").count(), 2);
        let (_, data) = page.split_once("id=\"data\">").expect("the data");
        let (data, _) = data.split_once("</script>").expect("its end");
        assert_eq!(serde_json::from_str::<Value>(data).expect("JSON")["text"], evil);
    }
}
