//! Loading of samples and validation in processes of their own, on spare cores or on DPUs of the hosts that train.
//!
//! Does: joins such processes to ranks over TCP or Unix sockets; pieces of loads under credits, snapshots and results.
//! Knows: addresses, secrets, framed messages, the greeting of both sides, pieces of loads.
//! Must not know: models, programs, how ranks run or talk to each other, printing.
//!
//! What is read of a piece (`data::PieceRequest`) is a function of the request, the dataset, the preprocessing and
//! the model. So a reading thread may take it from a process that has the same (`data::PieceSupply`), once both
//! sides have compared their settings. The rank, not the loader, knows the order: `session::LoadSequence` lists the
//! loads over the whole plan, and [`Loaders`] requests them ahead, within its credits. A request that is not the
//! next of that list, as after a change of plan, is answered too, and the others are requested again. A rank that
//! loses its loaders reads the next piece itself.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read what they wrote")
)]

mod address;
mod greeting;
mod loader;
mod message;
mod secret;
mod supply;
mod validator;

pub use address::{Address, AddressError, Listener, Stream};
pub use greeting::{
    Greeted, Hello, JoinError, Role, SharedSetting, difference, greet, join, turn_away, welcome,
};
pub use loader::{Served, serve_pieces};
pub use message::{LIST_BYTES_MAX, MESSAGE_BYTES_MAX, receive, receive_up_to, send};
pub use secret::{Secret, SecretError};
pub use supply::{Loaders, loaders_of, lost_reason};
pub use validator::{
    Report, ShardHead, SnapshotHead, receive_report, receive_snapshot, send_snapshot,
};
