//! Differences between families of MPI libraries: handles, constants, and the layout of `MPI_Status`.

mod mpich;
mod open_mpi;
mod standard;

use std::ffi::c_int;

/// A family of MPI libraries with one binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The application binary interface of MPI 5.0, chapter 20.
    Standard,
    /// MPICH from 3.1 on, and libraries that share its ABI: Intel MPI, MVAPICH, Cray MPICH.
    Mpich,
    /// Open MPI.
    OpenMpi,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 3] = [Family::Standard, Family::Mpich, Family::OpenMpi];

    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Family::Standard => "standard ABI",
            Family::Mpich => "MPICH",
            Family::OpenMpi => "Open MPI",
        }
    }

    /// File names of the library, the most specific first.
    pub(crate) fn files(self) -> &'static [&'static str] {
        match self {
            Family::Standard => &standard::FILES,
            Family::Mpich => &mpich::FILES,
            Family::OpenMpi => &open_mpi::FILES,
        }
    }

    /// The constants of this family.
    pub fn constants(self) -> Constants {
        match self {
            Family::Standard => standard::CONSTANTS,
            Family::Mpich => mpich::CONSTANTS,
            Family::OpenMpi => open_mpi::CONSTANTS,
        }
    }

    /// The predefined handles of this family: numbers, or names of the objects they point to.
    pub fn handles(self) -> Handles {
        match self {
            Family::Standard => standard::HANDLES,
            Family::Mpich => mpich::HANDLES,
            Family::OpenMpi => open_mpi::HANDLES,
        }
    }
}

/// A predefined handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predefined {
    /// A number, of the size of a handle.
    Value(u64),
    /// The address of an object of the library.
    Symbol(&'static str),
}

/// The predefined handles that this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handles {
    /// Whether a handle is a C `int`; else it is a pointer.
    pub are_int: bool,
    /// `MPI_COMM_WORLD`.
    pub comm_world: Predefined,
    /// `MPI_BYTE`.
    pub byte: Predefined,
    /// `MPI_INT16_T`.
    pub int16: Predefined,
    /// `MPI_FLOAT`.
    pub float: Predefined,
    /// `MPI_DOUBLE`.
    pub double: Predefined,
    /// `MPI_SUM`.
    pub sum: Predefined,
    /// `MPI_ERRORS_RETURN`.
    pub errors_return: Predefined,
}

impl Handles {
    /// All of them with their names in C.
    pub fn named(&self) -> [(&'static str, Predefined); 7] {
        [
            ("MPI_COMM_WORLD", self.comm_world),
            ("MPI_BYTE", self.byte),
            ("MPI_INT16_T", self.int16),
            ("MPI_FLOAT", self.float),
            ("MPI_DOUBLE", self.double),
            ("MPI_SUM", self.sum),
            ("MPI_ERRORS_RETURN", self.errors_return),
        ]
    }
}

/// The constants that this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// `MPI_ANY_SOURCE`.
    pub any_source: c_int,
    /// `MPI_UNDEFINED`.
    pub undefined: c_int,
    /// `MPI_ERR_IN_STATUS`.
    pub err_in_status: c_int,
    /// `MPI_TAG_UB`.
    pub tag_ub: c_int,
    /// `MPI_THREAD_SINGLE`, `_FUNNELED`, `_SERIALIZED` and `_MULTIPLE`.
    pub thread_levels: [c_int; 4],
    /// `MPI_IN_PLACE`, a pointer.
    pub in_place: isize,
    /// `MPI_MAX_ERROR_STRING`, in bytes.
    pub error_string_max: usize,
    /// `MPI_MAX_LIBRARY_VERSION_STRING`, in bytes.
    pub version_string_max: usize,
    /// `sizeof(MPI_Status)`, in bytes.
    pub status_bytes: usize,
    /// `offsetof(MPI_Status, MPI_SOURCE)`, in bytes.
    pub status_source: usize,
    /// `offsetof(MPI_Status, MPI_ERROR)`, in bytes.
    pub status_error: usize,
}

impl Constants {
    /// All of them as C expressions with their values.
    pub fn named(&self) -> [(&'static str, i64); 14] {
        let [single, funneled, serialized, multiple] = self.thread_levels;
        [
            ("MPI_ANY_SOURCE", self.any_source.into()),
            ("MPI_UNDEFINED", self.undefined.into()),
            ("MPI_ERR_IN_STATUS", self.err_in_status.into()),
            ("MPI_TAG_UB", self.tag_ub.into()),
            ("MPI_THREAD_SINGLE", single.into()),
            ("MPI_THREAD_FUNNELED", funneled.into()),
            ("MPI_THREAD_SERIALIZED", serialized.into()),
            ("MPI_THREAD_MULTIPLE", multiple.into()),
            ("(long)MPI_IN_PLACE", self.in_place as i64),
            ("MPI_MAX_ERROR_STRING", self.error_string_max as i64),
            (
                "MPI_MAX_LIBRARY_VERSION_STRING",
                self.version_string_max as i64,
            ),
            ("sizeof(MPI_Status)", self.status_bytes as i64),
            (
                "offsetof(MPI_Status, MPI_SOURCE)",
                self.status_source as i64,
            ),
            ("offsetof(MPI_Status, MPI_ERROR)", self.status_error as i64),
        ]
    }
}
