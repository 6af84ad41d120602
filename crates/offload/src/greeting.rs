//! The greeting: both sides say what they are, and the one that serves refuses another run.

use crate::address::{Address, Stream};
use crate::message::{invalid, receive, send};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

/// First bytes of each side, with the version of the protocol as the last one.
const MAGIC: [u8; 8] = *b"partita\x01";
/// Longest wait for the other side's part of a greeting.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a process does for a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads, prepares and augments samples.
    Loader,
    /// Validates snapshots of parameters.
    Validator,
}

impl Role {
    /// The word in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loader => "loader",
            Self::Validator => "validator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A setting in which both sides must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name, as a key of the run file where it is one.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Setting {
    /// A setting with the text of its value.
    pub fn new(name: &str, value: impl fmt::Display) -> Self {
        Self {
            name: name.to_owned(),
            value: value.to_string(),
        }
    }
}

/// What a trainer says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// What it wants.
    pub role: Role,
    /// Who it is, like `rank 0 of 4`.
    pub trainer: String,
    /// The settings of its run, in the order in which they are compared.
    pub settings: Vec<Setting>,
    /// What else the role needs.
    pub work: Value,
}

/// What the other side answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    /// It serves, with what the role tells.
    Welcome(Value),
    /// It does not, and why.
    Refused(String),
}

/// Why a process cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody listens there.
    #[error(
        "no {role} answers at {address}: {error}; start it with `partita serve --role {role} --listen {address}`, \
         or correct the address"
    )]
    Unreachable {
        /// What was looked for.
        role: Role,
        /// Where.
        address: Address,
        /// The error of the system.
        error: io::Error,
    },
    /// Whoever listens there is no process of Partita, or of another version.
    #[error("{address} is no {role} of this version of Partita: {error}")]
    Stranger {
        /// What was looked for.
        role: Role,
        /// Where.
        address: Address,
        /// What is wrong.
        error: io::Error,
    },
    /// It serves something else.
    #[error("the {role} at {address} refuses: {reason}")]
    Refused {
        /// What was looked for.
        role: Role,
        /// Where.
        address: Address,
        /// Why.
        reason: String,
    },
}

/// The first setting in which two sides differ, in words. Settings that one side lacks differ.
pub fn difference(role: Role, own: &[Setting], trainer: &[Setting]) -> Option<String> {
    let value = |all: &[Setting], name: &str| {
        let found = all.iter().find(|one| one.name == name);
        found.map_or_else(|| "not set".to_owned(), |one| one.value.clone())
    };
    let differs = |one: &&Setting| value(own, &one.name) != value(trainer, &one.name);
    let first = own.iter().chain(trainer).find(differs)?;
    let name = &first.name;
    Some(format!(
        "{name} is {} at the {role}, and {} at the trainer; start both with the same run file and data",
        value(own, name),
        value(trainer, name)
    ))
}

/// Joins a process as a trainer, and gives the connection with what the other side tells.
///
/// Errors: `Unreachable` if nobody listens within `patience`; a stranger; a refusal.
pub fn join(
    address: &Address,
    hello: &Hello,
    patience: Duration,
) -> Result<(Stream, Value), JoinError> {
    let role = hello.role;
    let connected = address.connect(patience);
    let mut stream = connected.map_err(|error| JoinError::Unreachable {
        role,
        address: address.clone(),
        error,
    })?;
    let answer = ask(&mut stream, hello).map_err(|error| JoinError::Stranger {
        role,
        address: address.clone(),
        error,
    })?;
    match answer {
        Answer::Welcome(told) => Ok((stream, told)),
        Answer::Refused(reason) => Err(JoinError::Refused {
            role,
            address: address.clone(),
            reason,
        }),
    }
}

fn ask(stream: &mut Stream, hello: &Hello) -> io::Result<Answer> {
    stream.set_timeout(Some(PATIENCE))?;
    stream.write_all(&MAGIC)?;
    send(stream, hello)?;
    check_magic(stream)?;
    receive(stream)
}

fn check_magic(stream: &mut Stream) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    let (name, version) = magic.split_at(MAGIC.len() - 1);
    let (own_name, own_version) = MAGIC.split_at(MAGIC.len() - 1);
    if name != own_name {
        return Err(invalid("it does not greet as Partita does"));
    }
    if version != own_version {
        let (found, own) = (version[0], own_version[0]);
        return Err(invalid(&format!(
            "version {found} of the protocol, where this one speaks version {own}"
        )));
    }
    Ok(())
}

/// A trainer that greeted.
#[derive(Debug)]
pub struct Greeted {
    /// The connection, on which an answer is due: [`welcome`] or [`turn_away`].
    pub stream: Stream,
    /// What it said.
    pub hello: Hello,
}

/// Takes the greeting of whoever connected.
///
/// Errors: it does not greet as a trainer of this version does.
pub fn greet(mut stream: Stream) -> io::Result<Greeted> {
    stream.set_timeout(Some(PATIENCE))?;
    check_magic(&mut stream)?;
    let hello = receive(&mut stream)?;
    stream.write_all(&MAGIC)?;
    Ok(Greeted { stream, hello })
}

/// Accepts a trainer and tells it what its role needs. From now on the connection waits without limit.
pub fn welcome(greeted: Greeted, told: Value) -> io::Result<Stream> {
    let mut stream = greeted.stream;
    send(&mut stream, &Answer::Welcome(told))?;
    stream.set_timeout(None)?;
    Ok(stream)
}

/// Refuses a trainer.
pub fn turn_away(greeted: Greeted, reason: &str) -> io::Result<()> {
    let mut stream = greeted.stream;
    send(&mut stream, &Answer::Refused(reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let own = [Setting::new("model", "a"), Setting::new("seed", 1)];
        assert_eq!(difference(Role::Loader, &own, &own), None);
        let other = [Setting::new("model", "a"), Setting::new("seed", 2)];
        let text = difference(Role::Loader, &own, &other).unwrap();
        assert!(
            text.starts_with("seed is 1 at the loader, and 2 at the trainer"),
            "{text}"
        );
        let text = difference(Role::Validator, &own[..1], &own).unwrap();
        assert!(
            text.starts_with("seed is not set at the validator"),
            "{text}"
        );
    }
}
