//! Pages and text tables of what the library `partita` answers.
//!
//! Does: writes each answer as text for a terminal, and a plan as a page of HTML with pictures in SVG.
//! Knows: the data types of `partita`, and how people read numbers.
//! Must not know: how an answer is found, arguments, files, the terminal. Whoever calls gives the output.
//!
//! [`page()`] makes the page of a plan; [`text`] has a function for each verb.

mod number;
mod page;
mod table;
pub mod text;

pub use page::{DOCTYPE, page};
