//! The standard ABI. Source: MPI 5.0, section 20.3 and appendix A.1; checked against `mpi_abi.h` of the
//! PyPI package mpich 5.0.2.

use super::{Constants, Handles, Predefined::Value};

pub(super) const FILES: [&str; 3] = ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"];

pub(super) const HANDLES: Handles = Handles {
    are_int: false,
    comm_world: Value(0x101),
    byte: Value(0x247),
    int16: Value(0x248),
    float: Value(0x210),
    double: Value(0x214),
    sum: Value(0x21),
    errors_return: Value(0x143),
};

pub(super) const CONSTANTS: Constants = Constants {
    any_source: -1,
    undefined: -32766,
    err_in_status: 19,
    tag_ub: 501,
    thread_levels: [0, 1024, 2048, 4096],
    in_place: 1,
    error_string_max: 512,
    version_string_max: 8192,
    status_bytes: 32,
    status_source: 0,
    status_error: 8,
};
