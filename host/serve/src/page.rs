//! The web page of the server: a chat, and the plan next to it.
//!
//! The page consists of three files without dependencies. It loads only these files and talks only
//! to this server, so that the content security policy can forbid everything else. Its scripts are
//! parts of one program, in the order of [`SCRIPT`], each with one subject.

/// The document at `/`.
pub const INDEX: &str = include_str!("page/index.html");

/// The style sheet at `/page.css`.
pub const STYLE: &str = include_str!("page/page.css");

/// The script at `/page.js`. Its parts share a scope that is not the window's.
pub const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("page/dom.js"),
    include_str!("page/markdown.js"),
    include_str!("page/stream.js"),
    include_str!("page/media.js"),
    include_str!("page/plan.js"),
    include_str!("page/chat.js"),
    include_str!("page/start.js"),
    "})();\n"
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of an attribute in the document.
    fn values(attribute: &str) -> Vec<&'static str> {
        let opening = format!(" {attribute}=\"");
        let parts = INDEX.split(opening.as_str()).skip(1);
        parts.map(|rest| rest.split('"').next().unwrap_or_default()).collect()
    }

    /// The policy would block it, in the browser of a user.
    #[test]
    fn the_document_has_no_script_or_style_of_its_own() {
        assert_eq!(INDEX.matches("<script").count(), 1);
        assert!(INDEX.contains("<script src=\"page.js\" defer></script>"));
        for forbidden in
            ["<style", " style=", " onclick=", " onload=", " onerror=", "javascript:", "http:", "https:"]
        {
            let found = INDEX.replace("http://www.w3.org/2000/svg", "").contains(forbidden);
            assert!(!found, "{forbidden}");
        }
        assert_eq!(values("src"), ["page.js"]);
        let addresses = values("href");
        assert_eq!(addresses[1..], ["page.css", "#message"]);
        assert!(addresses[0].starts_with("data:image/svg+xml,"), "{addresses:?}");
        for forbidden in ["@import", "url(", "@font-face"] {
            assert!(!STYLE.contains(forbidden), "{forbidden}");
        }
    }

    /// A text of a model would become elements.
    #[test]
    fn the_script_parses_no_html_and_no_code() {
        let ways = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "setHTML",
            "createContextualFragment",
            "srcdoc",
            "eval(",
            "new Function",
            "setTimeout(\"",
            "import(",
        ];
        for way in ways {
            assert!(!SCRIPT.contains(way), "{way}");
        }
    }

    #[test]
    fn elements_that_the_script_uses_exist_once() {
        let ids = values("id");
        for id in &ids {
            assert_eq!(ids.iter().filter(|other| other == &id).count(), 1, "{id}");
        }
        let used = SCRIPT.split("byId(\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
        let used: Vec<&str> = used.collect();
        assert!(used.len() > 40, "{used:?}");
        // The script makes this one.
        let made = ["regenerate"];
        for id in used {
            assert!(ids.contains(&id) || made.contains(&id), "no element `{id}`");
        }
        let labels = ["for", "aria-controls", "aria-labelledby", "aria-describedby"];
        for id in labels.into_iter().flat_map(values) {
            assert!(ids.contains(&id), "a label names no element `{id}`");
        }
    }
}
