//! A drawing of boxes, texts and arrows, which is readable on light and on dark pages: it has a background of its own, and the colours that
//! the reader prefers.

use std::fmt::Write as _;

/// The colours of each class, light and dark.
const STYLE: &str = "\
.back { fill: #ffffff }
.box { fill: #f3f5f7; stroke: #6b7280 }
.strong { fill: #dbeafe; stroke: #3b6db5 }
.line { stroke: #6b7280; fill: none; stroke-width: 1.2 }
.faint { stroke: #b4bac3; fill: none }
.head { fill: #6b7280 }
.line-0 { stroke: #d97706; stroke-width: 2 }
.line-1 { stroke: #8b5cf6; stroke-width: 2 }
.line-2 { stroke: #3b82f6; stroke-width: 2 }
.line-3 { stroke: #10b981; stroke-width: 2; stroke-dasharray: 6 3 }
text { fill: #1f2937; font: 13px sans-serif }
.code { font: 12px monospace }
.title { font-weight: bold }
.label { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
@media (prefers-color-scheme: dark) {
.back { fill: #14181f }
.box { fill: #232a34; stroke: #8b95a3 }
.strong { fill: #1d3557; stroke: #6ea1e0 }
.line { stroke: #9aa4b2 }
.line-0 { stroke: #f59e0b }
.line-1 { stroke: #a78bfa }
.line-2 { stroke: #60a5fa }
.line-3 { stroke: #34d399 }
.faint { stroke: #4b5563 }
.head { fill: #9aa4b2 }
text { fill: #e5e7eb }
.label { stroke: #14181f }
}
";
/// The height of a line of text.
pub(super) const LINE: i32 = 18;
/// The width of a letter, at most.
pub(super) const LETTER: i32 = 8;

/// A point: from the left, from the top.
pub(super) type Point = (i32, i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
}

#[derive(Debug)]
pub(super) struct Drawing {
    title: &'static str,
    description: &'static str,
    width: i32,
    height: i32,
    body: String,
}

impl Drawing {
    pub(super) fn new(title: &'static str, description: &'static str, width: i32, height: i32) -> Self {
        Self {
            title,
            description,
            width,
            height,
            body: String::new(),
        }
    }

    pub(super) fn rectangle(&mut self, class: &str, (x, y): Point, width: i32, height: i32) {
        let line =
            format!(r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>"#);
        self.push(&line);
    }

    /// A line of text. What is in backquotes has the font of code.
    pub(super) fn text(&mut self, class: &str, anchor: Anchor, (x, y): Point, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
        };
        let mut content = String::new();
        for (number, part) in text.split('`').enumerate() {
            let part = escaped(part);
            if number % 2 == 0 {
                content += &part;
            } else {
                let _ = write!(content, r#"<tspan class="code">{part}</tspan>"#);
            }
        }
        let class = if class.is_empty() {
            String::new()
        } else {
            format!(r#" class="{class}""#)
        };
        self.push(&format!(
            r#"<text{class} x="{x}" y="{y}" text-anchor="{anchor}">{content}</text>"#
        ));
    }

    /// A line through points.
    pub(super) fn line(&mut self, class: &str, points: &[Point]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        self.push(&format!(
            r#"<polyline class="{class}" points="{}"/>"#,
            points.join(" ")
        ));
    }

    /// A line through points with a head at the last one.
    pub(super) fn arrow(&mut self, points: &[Point]) {
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        self.push(&format!(
            r#"<polyline class="line" marker-end="url(#head)" points="{}"/>"#,
            places.join(" ")
        ));
    }

    pub(super) fn finish(self) -> String {
        let Self {
            title,
            description,
            width,
            height,
            body,
        } = self;
        let (title, description) = (escaped(title), escaped(description));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
<title>{title}</title>
<desc>{description}</desc>
<!-- Written by `cargo xtask fix`. -->
<style>
{STYLE}</style>
<defs>
<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>
</defs>
<rect class="back" width="{width}" height="{height}" rx="6"/>
{body}</svg>
"#
        )
    }

    fn push(&mut self, line: &str) {
        self.body.push_str(line);
        self.body.push('\n');
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_names_have_the_font_of_code() {
        let mut drawing = Drawing::new("a < b", "c", 10, 20);
        drawing.text("title", Anchor::Start, (1, 2), "x & `y`");
        let text = drawing.finish();
        assert!(text.contains("<title>a &lt; b</title>"), "{text}");
        let expected = r#"<text class="title" x="1" y="2" text-anchor="start">x &amp; <tspan class="code">y</tspan></text>"#;
        assert!(text.contains(expected), "{text}");
    }
}
