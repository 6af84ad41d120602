//! Pages of `partita plan --report`.

use crate::command::{error_text, json, partita, refusal};
use partita_testkit::not_run;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const COSMOFLOW: [&str; 8] = [
    "plan",
    "cosmoflow@64",
    "--machine",
    "lassen",
    "--ranks",
    "8",
    "--batch",
    "4",
];
const RESNET: [&str; 9] = [
    "plan",
    "resnet50@224",
    "--machine",
    "lassen",
    "--ranks",
    "8",
    "--batch",
    "32",
    "--no-io",
];

/// An element of a page, with all text in it.
#[derive(Debug, Default)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    children: Vec<Element>,
    text: String,
}

impl Element {
    fn attribute(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    fn all(&self) -> Vec<&Element> {
        let below = self.children.iter().flat_map(Element::all);
        [self].into_iter().chain(below).collect()
    }

    fn named(&self, name: &str) -> Vec<&Element> {
        let all = self.all().into_iter();
        all.filter(|element| element.name == name).collect()
    }

    fn by_id(&self, id: &str) -> &Element {
        let all = self.all();
        let mut found = all.iter().filter(|one| one.attribute("id") == id);
        let one = found
            .next()
            .unwrap_or_else(|| panic!("nothing has the id `{id}`"));
        assert!(found.next().is_none(), "two elements have the id `{id}`");
        one
    }

    /// The exact numbers of a table, row by row.
    fn numbers(&self) -> Vec<Vec<f64>> {
        let rows = self.named("tr").into_iter();
        let numbers = |row: &Element| {
            let data = row.named("data").into_iter();
            data.map(|datum| datum.attribute("value").parse().unwrap())
                .collect()
        };
        rows.map(numbers)
            .filter(|row: &Vec<f64>| !row.is_empty())
            .collect()
    }
}

/// Takes entities for what they stand for; an ampersand that begins none is a fault.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap().to_owned();
    for part in parts {
        let (entity, rest) = part.split_once(';').expect("an entity ends");
        plain.push_str(match entity {
            "amp" => "&",
            "lt" => "<",
            "gt" => ">",
            "quot" => "\"",
            "#39" => "'",
            other => panic!("`&{other};` is no entity of XML"),
        });
        plain.push_str(rest);
    }
    plain
}

/// Reads a page strictly: every tag is closed in order, every value is quoted.
fn read(page: &str) -> Element {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let mut open = vec![Element::default()];
    while let Some((text, after)) = rest.split_once('<') {
        assert!(!text.contains('>'), "a bare `>` in {text:?}");
        open.last_mut().unwrap().text += &unescaped(text);
        let (tag, after) = after.split_once('>').expect("a tag ends");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let done = open.pop().unwrap();
            assert_eq!(done.name, name, "closed out of order");
            let parent = open.last_mut().expect("one root");
            parent.text += &done.text;
            parent.children.push(done);
            continue;
        }
        let (tag, is_empty) = match tag.strip_suffix('/') {
            Some(tag) => (tag, true),
            None => (tag, false),
        };
        let element = element(tag);
        if is_empty {
            open.last_mut().unwrap().children.push(element)
        } else {
            open.push(element)
        }
    }
    assert_eq!(rest.trim(), "");
    assert_eq!(open.len(), 1, "a tag is left open");
    open.pop().unwrap()
}

fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut element = Element {
        name: name.to_owned(),
        ..Element::default()
    };
    while !rest.trim().is_empty() {
        let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("`{tag}`"));
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("`{tag}`"));
        let key = key.trim().to_owned();
        assert!(
            element.attribute(&key).is_empty(),
            "`{key}` twice in `{tag}`"
        );
        element.attributes.push((key, unescaped(value)));
        rest = after;
    }
    element
}

/// The JSON answer of a call with a report, and the report.
fn reported(asked: &[&str], folder: &Path) -> (Value, String) {
    let path = folder.join("plan.html");
    let more = ["--json", "--report", path.to_str().unwrap()];
    let list = json(&[asked, &more].concat());
    let page = fs::read_to_string(&path).unwrap();
    let left: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    (list, page)
}

fn assert_complete(asked: &[&str]) -> Element {
    let folder = tempfile::tempdir().unwrap();
    let (list, page) = reported(asked, folder.path());
    assert_eq!(list, json(&[asked, &["--json"]].concat()));
    assert_self_contained(&page);
    let root = read(&page);
    assert_pictures(&root);
    let (ranked, refused): (Vec<&Value>, Vec<&Value>) = list
        .as_array()
        .unwrap()
        .iter()
        .partition(|record| record.get("reason").is_none());
    let shown = root.by_id("ranking");
    for ((row, element), record) in shown.numbers().iter().zip(shown.named("code")).zip(&ranked) {
        let interval = &record["interval"];
        let exact = [
            &record["iteration_seconds"],
            &interval["low_seconds"],
            &interval["high_seconds"],
            &record["probability_fastest"],
            &record["samples_per_second"],
            &record["memory_bytes_max"],
        ];
        let exact = exact.map(|number| number.as_f64().unwrap());
        assert_eq!(row.len(), exact.len());
        for (shown, answered) in row.iter().zip(exact) {
            assert_equal(*shown, answered);
        }
        assert_eq!(element.text, record["strategy"].as_str().unwrap());
    }
    assert_eq!(shown.numbers().len(), ranked.len().min(12));
    assert_eq!(
        root.by_id("bottleneck").text,
        ranked[0]["bottleneck"].as_str().unwrap()
    );
    let limits = root.by_id("limits").named("li").into_iter();
    let limits: Vec<&str> = limits.map(|limit| limit.text.as_str()).collect();
    assert_eq!(Value::from(limits), ranked[0]["limits"]);
    let reasons = root.by_id("refused").named("tr");
    assert_eq!(reasons.len() - 1, refused.len());
    for (row, record) in reasons[1..].iter().zip(refused) {
        assert!(row.text.contains(record["reason"].as_str().unwrap()));
    }
    root
}

/// The reader of JSON rounds the last digit.
fn assert_equal(shown: f64, answered: f64) {
    let error = (shown - answered).abs();
    assert!(error <= 1e-14 * answered.abs(), "{shown} {answered}");
}

fn assert_self_contained(page: &str) {
    let names = ["http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"];
    let bare = names
        .iter()
        .fold(page.to_owned(), |page, name| page.replace(name, ""));
    for foreign in [
        "http", "src=", "href=", "@import", "<script", "<link", "NaN", "inf",
    ] {
        assert!(!bare.contains(&format!("\"{foreign}")), "{foreign}");
        let numbers = ["NaN", "inf"].contains(&foreign);
        assert!(numbers || !bare.contains(foreign), "{foreign}");
    }
}

fn assert_pictures(root: &Element) {
    for id in [
        "scaling",
        "breakdown",
        "memory",
        "partition",
        "timeline",
        "front",
    ] {
        let title = root.by_id(&format!("{id}-title"));
        let description = root.by_id(&format!("{id}-desc"));
        assert!(
            !title.text.is_empty() && !description.text.is_empty(),
            "{id}"
        );
    }
    for picture in root.named("svg") {
        let sides: Vec<f64> = picture
            .attribute("viewBox")
            .split(' ')
            .map(|side| side.parse().unwrap())
            .collect();
        for text in picture.named("text") {
            let at = |name| text.attribute(name).parse::<f64>().unwrap();
            let (x, y) = (at("x"), at("y"));
            let is_inside = (0.0..=sides[2]).contains(&x) && (0.0..=sides[3]).contains(&y);
            assert!(is_inside, "`{}` is clipped", text.text);
        }
    }
    let lanes = root.named("text").into_iter();
    let lanes: Vec<&str> = lanes.map(|text| text.text.as_str()).collect();
    for lane in ["compute", "exchange", "collective", "io", "rank 0"] {
        assert!(lanes.contains(&lane), "no {lane}");
    }
}

/// Time and memory of each number of ranks and of the bars are those that are answered for them alone.
fn assert_scaling(root: &Element, asked: &[&str]) {
    let rows = root.by_id("counts").numbers();
    assert_eq!(rows.len(), 4);
    for (row, ranks) in rows.iter().zip(["1", "2", "4", "8"]) {
        let mut fewer = asked.to_vec();
        fewer[5] = ranks;
        fewer.push("--json");
        let best = json(&fewer)[0]["samples_per_second"].as_f64();
        assert_equal(row[0], best.unwrap());
    }
}

#[test]
fn the_report_of_a_volume_shows_what_is_answered() {
    let root = assert_complete(&COSMOFLOW);
    assert_scaling(&root, &COSMOFLOW);
    assert!(
        root.by_id("counts")
            .text
            .contains("more ranks than samples")
    );
}

#[test]
fn the_report_of_an_image_shows_what_is_answered() {
    let root = assert_complete(&RESNET);
    // Data parallelism alone is best here.
    for row in root.by_id("counts").numbers() {
        assert!(row.len() == 2 && row[0] >= row[1], "{row:?}");
    }
}

#[test]
fn bars_of_memory_sum_to_what_a_rank_needs() {
    let folder = tempfile::tempdir().unwrap();
    let (list, page) = reported(
        &[&COSMOFLOW[..], &["--memory", "786MiB"]].concat(),
        folder.path(),
    );
    let root = read(&page);
    let all = root.named("svg").into_iter();
    let picture = all
        .max_by_key(|one| one.text.contains("halos and padding"))
        .unwrap();
    assert!(picture.text.contains("limit 786.00 MiB"));
    let mut checked = 0;
    for record in list
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one.get("reason").is_none())
        .take(3)
    {
        let strategy = record["strategy"].as_str().unwrap();
        let head = format!("{strategy}: ");
        let bars = picture
            .named("rect")
            .into_iter()
            .filter(|bar| bar.text.starts_with(&head));
        let width = |bar: &Element| bar.attribute("width").parse::<f64>().unwrap();
        let drawn: f64 = bars.map(width).sum();
        if drawn == 0.0 {
            // It needs what the one before needs, and is shown with it.
            continue;
        }
        checked += 1;
        // The axis has its places at 0 and at the end.
        let ticks = picture.named("polyline").into_iter();
        let ends =
            ticks.filter_map(|line| line.attribute("points").split(',').next()?.parse().ok());
        let ends: Vec<f64> = ends.collect();
        assert!(ends.contains(&300.0), "{ends:?}");
        let needed = record["memory_bytes_max"].as_f64().unwrap() / f64::from(1 << 20);
        let longest = ends.iter().copied().fold(0.0, f64::max);
        let most: f64 = picture
            .named("text")
            .into_iter()
            .filter(|text| text.attribute("x").parse::<f64>().unwrap() == longest)
            .find_map(|text| text.text.parse().ok())
            .unwrap();
        let expected = needed / most * (longest - 300.0);
        assert!(
            (drawn - expected).abs() < 0.1,
            "{strategy}: {drawn} {expected}"
        );
    }
    assert!(checked > 1, "{checked} strategies have bars");
    // Those that need more are shown, too.
    assert!(page.contains("does not fit"));
}

#[test]
fn where_nothing_fits_the_report_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.html");
    let more = ["--memory", "1MiB", "--report", path.to_str().unwrap()];
    let output = partita(&[&COSMOFLOW[..], &more].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", error_text(&output));
    let root = read(&fs::read_to_string(&path).unwrap());
    assert!(
        root.text
            .contains("No strategy fits 8 ranks with 1.00 MiB each")
    );
    assert!(root.by_id("refused").text.contains("a rank needs"));
}

#[test]
fn a_report_that_cannot_be_written_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/plan.html");
    for path in [missing.as_path(), folder.path()] {
        let path = path.to_str().unwrap();
        let text = refusal(&[&COSMOFLOW[..], &["--report", path]].concat());
        assert!(text.contains(path) && text.contains("written"), "{text}");
    }
    // A report of an earlier plan outlives a plan that is refused.
    let path = folder.path().join("plan.html");
    let mut asked = COSMOFLOW;
    asked[3] = "nowhere";
    let report = ["--report", path.to_str().unwrap()];
    fs::write(&path, "<!DOCTYPE html> before").unwrap();
    refusal(&[&asked[..], &report].concat());
    assert!(fs::read_to_string(&path).unwrap().ends_with("before"));
    // What is no report outlives any plan.
    fs::write(&path, "model = 'mine'").unwrap();
    let text = refusal(&[&COSMOFLOW[..], &report].concat());
    assert!(text.contains("not a report"), "{text}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "model = 'mine'");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Only where a browser is at hand; it draws the page and says what it took it for.
#[test]
fn a_browser_reads_the_report() {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let has = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(browser) = browsers.into_iter().find(has) else {
        return not_run("a_browser_reads_the_report", "no chromium");
    };
    let folder = tempfile::tempdir().unwrap();
    let (_, page) = reported(&COSMOFLOW, folder.path());
    let address = format!("file://{}", folder.path().join("plan.html").display());
    let profile = format!(
        "--user-data-dir={}",
        folder.path().join("profile").display()
    );
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", &profile])
        .args(["--dump-dom", &address])
        .output()
        .unwrap();
    let seen = String::from_utf8(output.stdout).unwrap();
    for tag in ["<svg", "<rect", "<text", "<tr", "<figcaption"] {
        assert_eq!(
            seen.matches(tag).count(),
            page.matches(tag).count(),
            "{tag}"
        );
    }
}
