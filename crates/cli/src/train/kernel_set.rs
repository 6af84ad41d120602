use crate::error::CliError;
use partita_local::{ReferenceKernels, ReferenceMenu};
use partita_program::{Dtype, Menu};
use partita_run::{Kernels, RunError};
use partita_space::{Mesh, Rank};

/// Who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSet {
    /// Fast.
    Cpu,
    /// Plain and exact.
    Reference,
}

/// In which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit.
    F32,
    /// 64-bit.
    F64,
}

impl Precision {
    /// The words for it in run files.
    pub const CHOICES: [(&str, Self); 2] = [("f32", Self::F32), ("f64", Self::F64)];

    /// The type in programs.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F64 => Dtype::F64,
        }
    }

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

impl KernelSet {
    /// The words for it in run files.
    pub const CHOICES: [(&str, Self); 2] = [("cpu", Self::Cpu), ("reference", Self::Reference)];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Reference => "reference",
        }
    }

    /// Whether it computes in this type.
    pub fn offers(self, precision: Precision) -> bool {
        match (self, precision) {
            (Self::Cpu, Precision::F32) | (Self::Reference, Precision::F32 | Precision::F64) => {
                true
            }
            (Self::Cpu, Precision::F64) => false,
        }
    }

    /// What it offers for each kernel shape.
    ///
    /// Errors: a set that this build does not have.
    pub fn menu(self) -> Result<Box<dyn Menu>, CliError> {
        match self {
            Self::Cpu => Err(CliError::User(
                "kernels = \"cpu\" is not offered by this build; possible, and nearest, is \
                 \"reference\""
                    .to_owned(),
            )),
            Self::Reference => Ok(Box::new(ReferenceMenu)),
        }
    }

    /// The kernels of a rank, made on the thread of the rank.
    ///
    /// Errors: a set that this build does not have.
    pub fn kernels(
        self,
        precision: Precision,
        mesh: Mesh,
        rank: Rank,
        _threads: usize,
    ) -> Result<Box<dyn Kernels>, RunError> {
        match (self, precision) {
            (Self::Cpu, Precision::F32 | Precision::F64) => Err(RunError::Algorithm {
                rank,
                kernel: "every kernel".to_owned(),
                algorithm: self.name().to_owned(),
                backend: "this build".to_owned(),
            }),
            (Self::Reference, Precision::F32) => {
                Ok(Box::new(ReferenceKernels::<f32>::new(mesh, rank)))
            }
            (Self::Reference, Precision::F64) => {
                Ok(Box::new(ReferenceKernels::<f64>::new(mesh, rank)))
            }
        }
    }
}
