//! Self-contained HTML page: all data, styles and scripts are embedded.
//!
//! ```text
//! Explanation::json ┐
//! History, emitted  ├→ one JSON value → page.html, with page.css, page.js and the value in it
//! events of a trace ┘
//! ```
//!
//! Program texts after each pass are stored as line diffs.

use serde_json::Value;

/// Assembles a page. `views` is an object with a key for each view, such as `programs`.
pub fn page(title: &str, subtitle: &str, mut views: Value) -> String {
    views["title"] = title.into();
    views["subtitle"] = subtitle.into();
    assemble(title, &views)
}

fn assemble(title: &str, data: &Value) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    // Only `<` can end a script element, and in JSON it occurs only inside of strings.
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

/// A tab of emitted code, or of the error as comments.
#[cfg(any(feature = "cpu", feature = "wgpu"))]
pub(super) fn emitted(name: &str, result: Result<String, crate::Error>) -> Value {
    let text = result.unwrap_or_else(|error| format!("// {error}\n// {}", error.help()));
    serde_json::json!({ "name": name, "text": text })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_in_the_data_ends_the_script() {
        let evil = "</script><script>alert(1)</script><!-- {{script}} & \u{2028}";
        let page = page(evil, evil, json!({ "text": evil }));
        assert_eq!(page.matches("</script>").count(), 2);
        let (_, data) = page.split_once("id=\"data\">").expect("the data");
        let (data, _) = data.split_once("</script>").expect("its end");
        assert_eq!(serde_json::from_str::<Value>(data).expect("JSON")["text"], evil);
    }
}
