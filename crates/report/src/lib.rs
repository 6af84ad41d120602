//! Text tables and HTML pages of the results of the library `partita`.
//!
//! Does: writes each result as text for a terminal, a plan as a page of HTML with SVG figures, and the losses
//! of a run as SVG and PNG.
//! Knows: the data types of `partita`, and formats of numbers.
//! Must not know: how a result is computed, arguments, files, the terminal. The caller passes the output.
//!
//! [`page()`] makes the page of a plan, [`tuning_page`] that of tuned kernels, [`curves()`] the figure of a run; [`text`] has a function for each verb.

mod curves;
mod number;
mod page;
mod table;
pub mod text;

pub use curves::{CurveFigure, curves};
pub use page::{DOCTYPE, page, tuning_page};
