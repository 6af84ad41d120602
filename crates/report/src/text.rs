//! Each answer as text.

mod calibrate;
mod compare;
mod data;
mod demo;
mod doctor;
mod explain;
mod forward;
mod import;
mod inspect;
mod models;
mod plan;
mod predict;
mod train;
mod tune;

pub use calibrate::calibrate;
pub use compare::compare;
pub use data::{dataset, features, inspected};
pub use demo::baselines;
pub use doctor::doctor;
pub use forward::{evaluate, infer, is_samples_csv, samples_csv, weights};
pub use import::import;
pub use inspect::inspect;
pub use models::models;
pub use plan::plan;
pub(crate) use plan::ties_text;
pub use predict::{basis, predict};
pub use train::train;
pub use tune::tune;
