//! Formats of metrics.

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// A JSON object per step and epoch.
    JsonLines,
    /// A row per epoch.
    Csv,
    /// Scalars for TensorBoard.
    TensorBoard,
    /// `:::MLLOG` lines of MLPerf HPC.
    Mlperf,
}

impl MetricsFormat {
    /// All formats, with their words in a run file.
    pub const CHOICES: [(&'static str, Self); 4] = [
        ("jsonl", Self::JsonLines),
        ("csv", Self::Csv),
        ("tensorboard", Self::TensorBoard),
        ("mlperf", Self::Mlperf),
    ];

    /// Name of its file in the output folder.
    pub const fn file(self) -> &'static str {
        match self {
            Self::JsonLines => "metrics.jsonl",
            Self::Csv => "epochs.csv",
            Self::TensorBoard => "events.out.tfevents.partita",
            Self::Mlperf => "mlperf.log",
        }
    }
}
