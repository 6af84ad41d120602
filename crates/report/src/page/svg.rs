//! Elements of SVG.

use std::fmt::{Display, Write};

/// The palette of Okabe and Ito (2008), which is safe for color blindness.
pub mod color {
    /// Text and axes.
    pub const BLACK: &str = "#000000";
    pub const ORANGE: &str = "#e69f00";
    pub const SKY: &str = "#56b4e9";
    pub const GREEN: &str = "#009e73";
    pub const YELLOW: &str = "#f0e442";
    pub const BLUE: &str = "#0072b2";
    pub const VERMILLION: &str = "#d55e00";
    pub const PURPLE: &str = "#cc79a7";
    pub const BROWN: &str = "#8c6239";
    pub const OLIVE: &str = "#a6a400";
    /// For areas of little importance.
    pub const GRAY: &str = "#b3b3b3";
    /// For large areas, instead of black.
    pub const STONE: &str = "#6e6e6e";
    /// Grid lines.
    pub const FAINT: &str = "#dddddd";
    /// Secondary text; the contrast to white is above 7.
    pub const QUIET: &str = "#444444";
}

/// Width of every figure in its units; a letter is about 13 high.
pub const WIDTH: f64 = 860.0;

/// Alignment of a text at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The text starts there.
    Start,
    /// The text lies around it.
    Middle,
    /// The text ends there.
    End,
}

/// Style of a line.
#[derive(Clone, Copy, Debug)]
pub struct Stroke {
    /// Color.
    pub color: &'static str,
    /// Width.
    pub width: f64,
    /// Whether it is dashed.
    pub is_dashed: bool,
}

impl Stroke {
    /// A solid line.
    pub fn solid(color: &'static str, width: f64) -> Self {
        Self {
            color,
            width,
            is_dashed: false,
        }
    }

    /// A dashed line.
    pub fn dashed(color: &'static str, width: f64) -> Self {
        Self {
            color,
            width,
            is_dashed: true,
        }
    }
}

/// A figure under construction: a well-formed `svg` element with a title and a description.
#[derive(Debug)]
pub struct Svg {
    text: String,
    height: f64,
    head: String,
}

/// A box: left, top, width, height.
pub type Frame = [f64; 4];

impl Svg {
    /// An empty figure. `id` is unique in the page.
    pub fn new(id: &str, title: &str, description: &str, height: f64) -> Self {
        let head = format!(
            "role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n<title id=\"{id}-title\">{}</title>\n\
             <desc id=\"{id}-desc\">{}</desc>\n",
            escape(title),
            escape(description)
        );
        Self {
            text: String::new(),
            height,
            head,
        }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        let written = self.text.write_fmt(element);
        assert!(written.is_ok(), "a string takes any text");
    }

    /// A filled box with a thin white border, and its tooltip.
    pub fn bar(&mut self, frame: Frame, fill: &str, tooltip: &str) {
        let [x, y, width, height] = frame.map(number);
        let tooltip = if tooltip.is_empty() {
            "/>".to_owned()
        } else {
            format!("><title>{}</title></rect>", escape(tooltip))
        };
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\" \
             stroke=\"#fff\" stroke-width=\"0.5\"{tooltip}\n"
        ));
    }

    /// A filled box without a border.
    pub fn area(&mut self, frame: Frame, fill: &str) {
        let [x, y, width, height] = frame.map(number);
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>\n"
        ));
    }

    /// A line through points.
    pub fn line(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let places = places(points);
        let style = style(stroke);
        self.push(format_args!(
            "<polyline points=\"{places}\" fill=\"none\"{style}/>\n"
        ));
    }

    /// A closed shape.
    pub fn polygon(&mut self, points: &[(f64, f64)], fill: &str, stroke: Stroke) {
        let places = places(points);
        let style = style(stroke);
        self.push(format_args!(
            "<polygon points=\"{places}\" fill=\"{fill}\"{style}/>\n"
        ));
    }

    /// A disc, or a ring where the fill is white, and its tooltip.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str, edge: &str, tooltip: &str) {
        let ([x, y, radius], tooltip) = ([x, y, radius].map(number), escape(tooltip));
        self.push(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{edge}\" \
             stroke-width=\"1.5\"><title>{tooltip}</title></circle>\n"
        ));
    }

    /// A cross, and its tooltip.
    pub fn cross(&mut self, (x, y): (f64, f64), radius: f64, color: &str, tooltip: &str) {
        let [left, right, top, bottom] =
            [x - radius, x + radius, y - radius, y + radius].map(number);
        let tooltip = escape(tooltip);
        self.push(format_args!(
            "<path d=\"M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}\" \
             stroke=\"{color}\" stroke-width=\"2\" fill=\"none\"><title>{tooltip}</title></path>\n"
        ));
    }

    /// A text.
    pub fn label(&mut self, at: (f64, f64), anchor: Anchor, words: impl Display) {
        self.words(at, anchor, "", &words.to_string());
    }

    /// A text in a class of the style sheet: `strong`, `small`, `quiet` or `code`.
    pub fn styled(&mut self, at: (f64, f64), anchor: Anchor, class: &str, words: impl Display) {
        let class = format!(" class=\"{class}\"");
        self.words(at, anchor, &class, &words.to_string());
    }

    fn words(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let ([x, y], words) = ([x, y].map(number), escape(words));
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\"{anchor}{class}>{words}</text>\n"
        ));
    }

    /// A vertical text centered at a point, such as the title of an axis.
    pub fn upward(&mut self, (x, y): (f64, f64), words: &str) {
        let ([x, y], words) = ([x, y].map(number), escape(words));
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x} {y})\">{words}</text>\n"
        ));
    }

    /// A legend from a point on, in as many lines as needed; returns its height.
    pub fn legend(&mut self, left: f64, top: f64, entries: &[(&str, String)]) -> f64 {
        let (mut x, mut y) = (left, top);
        for (fill, name) in entries {
            let width = 30.0 + 7.5 * name.chars().count() as f64;
            if x + width > WIDTH && x > left {
                (x, y) = (left, y + 19.0);
            }
            self.area([x, y, 12.0, 12.0], fill);
            self.label((x + 17.0, y + 10.5), Anchor::Start, name);
            x += width;
        }
        y + 19.0 - top
    }

    /// Defines the fill `url(#hatch)`, once per page.
    pub fn define_hatch(&mut self) {
        self.text.push_str(
            "<defs><pattern id=\"hatch\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"1.4\" height=\"4\" fill=\"#000\" \
             fill-opacity=\"0.65\"/></pattern></defs>\n",
        );
    }

    /// Sets the height of the figure.
    pub fn grow(&mut self, height: f64) {
        self.height = height;
    }

    /// Returns the element.
    pub fn finish(self) -> String {
        let [width, height] = [WIDTH, self.height].map(number);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" {}{}</svg>\n",
            self.head, self.text
        )
    }
}

fn places(points: &[(f64, f64)]) -> String {
    let place = |&(x, y): &(f64, f64)| format!("{},{}", number(x), number(y));
    points.iter().map(place).collect::<Vec<_>>().join(" ")
}

fn style(stroke: Stroke) -> String {
    let dash = if stroke.is_dashed {
        " stroke-dasharray=\"5 3\""
    } else {
        ""
    };
    let width = number(stroke.width);
    format!(
        " stroke=\"{}\" stroke-width=\"{width}\"{dash}",
        stroke.color
    )
}

/// A coordinate with as many digits as are visible.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// Escapes a text for HTML and XML, in elements and attributes; drops characters that XML does not allow.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(letter),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {}
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// At most this many letters of a text; a longer one loses its middle.
pub fn shortened(text: &str, letters: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= letters {
        return text.to_owned();
    }
    let (head, tail) = (letters.div_ceil(2), letters - letters.div_ceil(2) - 1);
    let head = all[..head].iter();
    head.chain(&['…']).chain(&all[all.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_was_typed_becomes_a_tag() {
        assert_eq!(escape("a<b & \"c'\u{7}"), "a&lt;b &amp; &quot;c&#39;");
        let mut svg = Svg::new("f", "<t>", "&", 10.0);
        svg.label((0.0, 0.0), Anchor::Start, "</svg>");
        svg.bar([0.0; 4], color::BLUE, "<script>");
        let text = svg.finish();
        assert_eq!(text.matches("</svg>").count(), 1);
        assert!(!text.contains("<script>") && !text.contains("<t>"));
    }

    #[test]
    fn the_middle_of_a_long_text_is_left_out() {
        assert_eq!(shortened("abcdefgh", 8), "abcdefgh");
        assert_eq!(shortened("abcdefghi", 8), "abcd…ghi");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, -0.001, 2.345_67].map(number), ["1", "0", "2.35"]);
    }
}
