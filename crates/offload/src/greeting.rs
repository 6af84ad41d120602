//! The greeting: both sides prove that they have the same secret, then say what they are; the one that serves refuses
//! another run. Who has not proven it is told nothing but the version of the protocol.

use crate::address::{Address, Stream};
use crate::message::{invalid, receive, send};
use crate::secret::{Nonce, Secret, Side, random};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

/// First bytes of each side, with the version of the protocol as the last one.
const MAGIC: [u8; 8] = *b"partita\x02";
/// Longest time of the proofs of both sides.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time from there to the answer. The one that serves opens its dataset again for it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// What the one that serves says of a proof.
const PROVEN: u8 = 1;

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
pub struct SharedSetting {
    /// Its name, as a key of the run file where it is one.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl SharedSetting {
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
    pub settings: Vec<SharedSetting>,
}

/// What the other side answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    /// It serves.
    Welcome,
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
    /// One side has another secret.
    #[error(
        "the {role} at {address} has another secret; help: start it as the same user, or give both sides the same file: \
         `secret` under [offload], and --secret of `partita serve`"
    )]
    Secret {
        /// What was looked for.
        role: Role,
        /// Where.
        address: Address,
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
pub fn difference(role: Role, own: &[SharedSetting], trainer: &[SharedSetting]) -> Option<String> {
    let value = |all: &[SharedSetting], name: &str| {
        let found = all.iter().find(|one| one.name == name);
        found.map_or_else(|| "not set".to_owned(), |one| one.value.clone())
    };
    let differs = |one: &&SharedSetting| value(own, &one.name) != value(trainer, &one.name);
    let first = own.iter().chain(trainer).find(differs)?;
    let name = &first.name;
    Some(format!(
        "{name} is {} at the {role}, and {} at the trainer; start both with the same run file and data",
        value(own, name),
        value(trainer, name)
    ))
}

/// Joins a process as a trainer. `work` is what the role needs beside the settings.
///
/// Errors: `Unreachable` if nobody listens within `patience`; a stranger; another secret; a refusal.
pub fn join<W: Serialize>(
    address: &Address,
    secret: &Secret,
    (hello, work): (&Hello, &W),
    patience: Duration,
) -> Result<Stream, JoinError> {
    let role = hello.role;
    let connected = address.connect(patience);
    let mut stream = connected.map_err(|error| JoinError::Unreachable {
        role,
        address: address.clone(),
        error,
    })?;
    let stranger = |error| JoinError::Stranger {
        role,
        address: address.clone(),
        error,
    };
    if !is_mutual(&mut stream, secret).map_err(stranger)? {
        return Err(JoinError::Secret {
            role,
            address: address.clone(),
        });
    }
    match ask(&mut stream, hello, work).map_err(stranger)? {
        Answer::Welcome => Ok(stream),
        Answer::Refused(reason) => Err(JoinError::Refused {
            role,
            address: address.clone(),
            reason,
        }),
    }
}

/// Whether both sides have the secret, as the trainer finds out.
fn is_mutual(stream: &mut Stream, secret: &Secret) -> io::Result<bool> {
    stream.set_deadline(PATIENCE);
    check_magic(stream)?;
    let theirs: Nonce = take(stream)?;
    let own = random()?;
    stream.write_all(&MAGIC)?;
    stream.write_all(&own)?;
    stream.write_all(&secret.proof(Side::Trainer, [&theirs, &own]))?;
    if take::<1>(stream)? != [PROVEN] {
        return Ok(false);
    }
    let proof = take(stream)?;
    Ok(secret.is_proven(Side::Server, [&theirs, &own], &proof))
}

fn take<const N: usize>(stream: &mut Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn ask<W: Serialize>(stream: &mut Stream, hello: &Hello, work: &W) -> io::Result<Answer> {
    stream.set_deadline(ANSWER_PATIENCE);
    send(stream, hello)?;
    send(stream, work)?;
    receive(stream)
}

fn check_magic(stream: &mut Stream) -> io::Result<()> {
    let magic: [u8; MAGIC.len()] = take(stream)?;
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

impl Greeted {
    /// What the role needs beside the settings.
    ///
    /// Errors: it is not of this type.
    pub fn work<W: DeserializeOwned>(&mut self) -> io::Result<W> {
        receive(&mut self.stream)
    }
}

/// Takes the greeting of whoever connected.
///
/// Errors: it does not greet as a trainer of this version does, or has another secret.
pub fn greet(mut stream: Stream, secret: &Secret) -> io::Result<Greeted> {
    stream.set_deadline(PATIENCE);
    let own = random()?;
    stream.write_all(&MAGIC)?;
    stream.write_all(&own)?;
    check_magic(&mut stream)?;
    let theirs: Nonce = take(&mut stream)?;
    let proof = take(&mut stream)?;
    if !secret.is_proven(Side::Trainer, [&own, &theirs], &proof) {
        // It may have gone already.
        let _ = stream.write_all(&[1 - PROVEN]);
        return Err(invalid("it has another secret"));
    }
    stream.write_all(&[PROVEN])?;
    stream.write_all(&secret.proof(Side::Server, [&own, &theirs]))?;
    let hello = receive(&mut stream)?;
    stream.set_deadline(ANSWER_PATIENCE);
    Ok(Greeted { stream, hello })
}

/// Accepts a trainer. From now on the connection waits without limit.
pub fn welcome(greeted: Greeted) -> io::Result<Stream> {
    let mut stream = greeted.stream;
    send(&mut stream, &Answer::Welcome)?;
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
        let own = [
            SharedSetting::new("model", "a"),
            SharedSetting::new("seed", 1),
        ];
        assert_eq!(difference(Role::Loader, &own, &own), None);
        let other = [
            SharedSetting::new("model", "a"),
            SharedSetting::new("seed", 2),
        ];
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
