//! The text form of a program: a header, then per class its buffers, outputs and tasks, a line each.

use crate::{Body, Buffer, Output, Phase, Program, Staging, Task, TaskId};
use partita_space::help::extend;
use partita_space::{AxisSet, Bytes, Mesh, on_cores};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::ops::Range;

/// A text that is not a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the program: {reason}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// What was expected and what was found.
    pub reason: String,
}

const PHASES: [Phase; 6] = [
    Phase::Load,
    Phase::Forward,
    Phase::Backward,
    Phase::Reduce,
    Phase::Update,
    Phase::Report,
];

/// Classes whose text is made at a time.
const BODIES: usize = 64;

/// Classes in a row whose text is made together: neighbors have most lines in common.
const NEIGHBORS: usize = 8;

fn append<T: Serialize>(text: &mut String, value: &T) {
    let written = ron::Options::default().to_writer(text, value);
    written.expect("program types have a text form");
}

fn ron<T: Serialize>(value: &T) -> String {
    let mut text = String::new();
    append(&mut text, value);
    text
}

impl Program {
    /// The text form; [`Program::parse`] is its inverse.
    pub fn to_text(&self) -> String {
        let mut text = format!("program {}\n", self.title);
        self.write_identity(&mut text);
        text
    }

    /// All but the title line.
    fn write_identity(&self, text: &mut impl Write) {
        let kind = format!("{:?}", self.kind).to_lowercase();
        let dtype = format!("{:?}", self.dtype).to_lowercase();
        let _ = writeln!(text, "kind {kind}");
        let _ = writeln!(text, "dtype {dtype}");
        let _ = writeln!(text, "batch {}", self.batch);
        let _ = writeln!(text, "mesh {}", ron(&self.mesh));
        if !self.local_statistics.is_empty() {
            let _ = writeln!(text, "local_statistics {}", ron(&self.local_statistics));
        }
        let _ = writeln!(text, "classes {}", runs(&self.class_of));
        // Some at a time, as the text of many classes is long.
        for (first, some) in (0..).step_by(BODIES).zip(self.bodies.chunks(BODIES)) {
            let rows: Vec<&[Body]> = some.chunks(NEIGHBORS).collect();
            let of = |at: usize| texts(rows[at], first + at * NEIGHBORS);
            for lines in on_cores(rows.len(), self.tasks(), of) {
                let _ = text.write_str(&lines);
            }
        }
    }

    /// Reads the text form.
    ///
    /// Errors: the first line that does not fit, and why.
    pub fn parse(text: &str) -> Result<Program, ParseError> {
        Lines {
            lines: text.lines().enumerate().peekable(),
        }
        .program()
    }

    /// Identity of the program: 16 hexadecimal digits of the SHA-256 of its text without the title.
    pub fn digest(&self) -> String {
        let mut hashed = Hashed(Sha256::new());
        self.write_identity(&mut hashed);
        let hash = hashed.0.finalize();
        hash[..8].iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// Hashes the text as it is written: that of many classes is long.
struct Hashed(Sha256);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Run lengths, `0*3 1*1`.
fn runs(classes: &[u32]) -> String {
    let mut parts: Vec<(u32, usize)> = Vec::new();
    for &class in classes {
        match parts.last_mut() {
            Some((last, count)) if *last == class => *count += 1,
            Some(_) | None => parts.push((class, 1)),
        }
    }
    parts
        .iter()
        .map(|(class, count)| format!("{class}*{count}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The lines of some classes in a row, of which this is the first.
fn texts(bodies: &[Body], first: usize) -> String {
    let mut text = String::new();
    let (mut buffers, mut tasks) = (Entries::default(), Entries::default());
    for (class, body) in (first..).zip(bodies) {
        let _ = writeln!(text, "class {class} arena={}", body.arena.0);
        let Staging {
            exchange,
            collective,
            io,
        } = body.staging;
        let _ = writeln!(
            text,
            "  staging exchange={} collective={} io={}",
            exchange.0, collective.0, io.0
        );
        buffers.write(&mut text, &body.buffers, write_buffer);
        for output in &body.outputs {
            let _ = writeln!(text, "  output {} {}", output.name, output.view);
        }
        tasks.write(&mut text, &body.tasks, write_task);
    }
    text
}

/// The lines of the entries of the class before.
struct Entries<'b, T> {
    entries: &'b [T],
    /// Of each entry its line in the text.
    lines: Vec<Range<usize>>,
}

impl<T> Default for Entries<'_, T> {
    fn default() -> Self {
        Self {
            entries: &[],
            lines: Vec::new(),
        }
    }
}

impl<'b, T: PartialEq> Entries<'b, T> {
    /// Writes a line for each entry; that of one that the class before has at the same index is copied.
    fn write(&mut self, text: &mut String, entries: &'b [T], write: fn(&mut String, usize, &T)) {
        let mut lines = Vec::with_capacity(entries.len());
        for (id, entry) in entries.iter().enumerate() {
            let start = text.len();
            match self.entries.get(id) {
                Some(before) if before == entry => text.extend_from_within(self.lines[id].clone()),
                Some(_) | None => write(text, id, entry),
            }
            lines.push(start..text.len());
        }
        *self = Self { entries, lines };
    }
}

fn write_buffer(line: &mut String, id: usize, buffer: &Buffer) {
    let _ = write!(line, "  buffer b{id} {} ", buffer.name);
    append(line, &buffer.role);
    line.push(' ');
    append(line, &buffer.dtype);
    let [n, d, h, w, c] = buffer.dims;
    let _ = write!(line, " {n}x{d}x{h}x{w}x{c} @{} ", buffer.offset.0);
    append(line, &buffer.tensor);
    line.push('\n');
}

fn write_task(line: &mut String, id: usize, task: &Task) {
    let _ = write!(line, "  t{id}");
    if task.origin.turn > 0 {
        let _ = write!(line, "@{}", task.origin.turn);
    }
    let words = [
        task.work.lane().name(),
        task.origin.phase.name(),
        &task.origin.layer,
        "after",
    ];
    for word in words {
        line.push(' ');
        line.push_str(word);
    }
    line.push_str(" [");
    for (at, id) in task.after.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(line, "{comma}t{}", id.0);
    }
    line.push_str("] ");
    append(line, &task.work);
    line.push('\n');
}

struct Lines<'a> {
    lines: std::iter::Peekable<std::iter::Enumerate<std::str::Lines<'a>>>,
}

impl<'a> Lines<'a> {
    fn next(&mut self, key: &str) -> Result<(usize, &'a str), ParseError> {
        let Some((index, line)) = self.lines.next() else {
            return Err(ParseError {
                line: 0,
                reason: format!("ends before `{key}`"),
            });
        };
        match line
            .trim_start()
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix(' '))
        {
            Some(rest) => Ok((index + 1, rest)),
            None => Err(ParseError {
                line: index + 1,
                reason: format!("`{key}` is expected, `{line}` stands there"),
            }),
        }
    }

    fn value<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, ParseError> {
        let (line, rest) = self.next(key)?;
        read(line, rest)
    }

    fn word<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, ParseError> {
        let (line, rest) = self.next(key)?;
        read(line, rest)
    }

    fn program(mut self) -> Result<Program, ParseError> {
        let title = self.next("program")?.1.to_owned();
        let kind = self.word("kind")?;
        let dtype = self.word("dtype")?;
        let batch = self.value("batch")?;
        let mesh: Mesh = self.value("mesh")?;
        let mut lines = self.lines.clone();
        let is_next = lines
            .next()
            .is_some_and(|(_, line)| line.starts_with("local_statistics "));
        let local_statistics = if is_next {
            self.value("local_statistics")?
        } else {
            AxisSet::NONE
        };
        let (line, classes) = self.next("classes")?;
        let class_of = read_runs(line, classes, mesh.ranks())?;
        let mut bodies = Vec::new();
        while self.lines.peek().is_some() {
            let (line, rest) = self.next("class")?;
            let arena = rest
                .split_once("arena=")
                .map(|(_, bytes)| bytes)
                .unwrap_or(rest);
            let mut body = Body {
                arena: Bytes(read(line, arena)?),
                ..Body::default()
            };
            while let Some(&(index, text)) = self.lines.peek() {
                if !text.starts_with("  ") {
                    break;
                }
                self.lines.next();
                body_line(&mut body, index + 1, text.trim_start())?;
            }
            bodies.push(body);
        }
        Ok(Program {
            title,
            kind,
            dtype,
            batch,
            mesh,
            local_statistics,
            bodies,
            class_of,
        })
    }
}

fn body_line(body: &mut Body, line: usize, text: &str) -> Result<(), ParseError> {
    let fail = |reason: &str| ParseError {
        line,
        reason: format!("{reason}: `{text}`"),
    };
    if let Some(rest) = text.strip_prefix("buffer ") {
        let parts: Vec<&str> = rest.splitn(7, ' ').collect();
        let [id, name, role, dtype, dims, offset, tensor] = parts[..] else {
            return Err(fail("a buffer has seven words"));
        };
        if id != format!("b{}", body.buffers.len()) {
            return Err(fail("buffers are numbered from b0"));
        }
        let dims: Result<Vec<usize>, _> = dims.split('x').map(str::parse).collect();
        let dims = dims.ok().and_then(|dims| dims.try_into().ok());
        body.buffers.push(Buffer {
            name: name.to_owned(),
            role: read(line, role)?,
            dtype: read(line, dtype)?,
            dims: dims.ok_or_else(|| fail("five extents are expected"))?,
            tensor: read(line, tensor)?,
            offset: Bytes(read(line, offset.trim_start_matches('@'))?),
        });
    } else if let Some(rest) = text.strip_prefix("output ") {
        let (name, view) = rest
            .split_once(' ')
            .ok_or_else(|| fail("an output has a view"))?;
        let view = view.parse().map_err(|error| fail(&format!("{error}")))?;
        body.outputs.push(Output {
            name: name.to_owned(),
            view,
        });
    } else if let Some(rest) = text.strip_prefix("staging ") {
        body.staging = staging_line(rest)
            .ok_or_else(|| fail("staging reads `exchange=64 collective=64 io=64`, in bytes"))?;
    } else {
        body.tasks.push(task_line(body.tasks.len(), line, text)?);
    }
    Ok(())
}

fn staging_line(text: &str) -> Option<Staging> {
    let mut words = text.split(' ');
    let mut bytes = |name: &str| {
        let (key, bytes) = words.next()?.split_once('=')?;
        (key == name).then_some(Bytes(bytes.parse().ok()?))
    };
    let staging = Staging {
        exchange: bytes("exchange")?,
        collective: bytes("collective")?,
        io: bytes("io")?,
    };
    words.next().is_none().then_some(staging)
}

fn task_line(id: usize, line: usize, text: &str) -> Result<Task, ParseError> {
    let fail = |reason: &str| ParseError {
        line,
        reason: format!("{reason}: `{text}`"),
    };
    let parts: Vec<&str> = text.splitn(7, ' ').collect();
    let [number, lane, phase, layer, _, after, work] = parts[..] else {
        return Err(fail("a task has seven words"));
    };
    let (number, turn) = match number.split_once('@') {
        Some((number, turn)) => (number, turn.parse().ok().filter(|turn| *turn > 0)),
        None => (number, Some(0)),
    };
    if number != format!("t{id}") {
        return Err(fail("tasks are numbered from t0"));
    }
    let phase = PHASES.into_iter().find(|known| known.name() == phase);
    let after = after.trim_start_matches('[').trim_end_matches(']');
    let after: Option<Vec<TaskId>> = after
        .split(',')
        .filter(|word| !word.is_empty())
        .map(|word| word.strip_prefix('t')?.parse().ok().map(TaskId))
        .collect();
    let task = Task {
        origin: crate::Origin {
            layer: layer.to_owned(),
            phase: phase.ok_or_else(|| fail("no such phase"))?,
            turn: turn.ok_or_else(|| fail("a turn is a number from 1 on"))?,
        },
        after: after.ok_or_else(|| fail("tasks to wait for read `[t1,t2]`"))?,
        work: read(line, work)?,
    };
    if task.work.lane().name() != lane {
        return Err(fail("the work belongs to another lane"));
    }
    Ok(task)
}

fn read<T: DeserializeOwned>(line: usize, text: &str) -> Result<T, ParseError> {
    ron::from_str(text).map_err(|error| ParseError {
        line,
        reason: extend(&error, format_args!(": `{text}`")).to_string(),
    })
}

/// The class of each rank.
fn read_runs(line: usize, text: &str, ranks: usize) -> Result<Vec<u32>, ParseError> {
    let mut classes = Vec::new();
    let fail = |reason: String| ParseError { line, reason };
    for run in text.split_whitespace() {
        let parsed = run.split_once('*').and_then(|(class, count)| {
            Some((class.parse::<u32>().ok()?, count.parse::<usize>().ok()?))
        });
        let (class, count) = parsed.ok_or_else(|| {
            fail(format!(
                "a run of classes reads `0*4`, `{run}` stands there"
            ))
        })?;
        let left = ranks - classes.len();
        if count > left {
            return Err(fail(format!(
                "`{run}` gives classes to {count} ranks, of the {ranks} of the mesh {left} are left"
            )));
        }
        classes.extend(std::iter::repeat_n(class, count));
    }
    if classes.len() == ranks {
        return Ok(classes);
    }
    let given = classes.len();
    Err(fail(format!(
        "classes are given for {given} ranks, the mesh has {ranks}"
    )))
}
