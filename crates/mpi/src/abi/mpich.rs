//! MPICH. Source: `mpi.h` of MPICH 4.0.2 (Debian 12, libmpich-dev), and of MPICH 5.0.2 (PyPI package
//! mpich); the interface has been the same since 3.1 (the MPICH ABI compatibility initiative).

use super::{Constants, Handles, Predefined::Value};

/// Debian renames the library; Cray adds its compiler.
pub(super) const FILES: [&str; 5] = [
    "libmpi.so.12",
    "libmpich.so.12",
    "libmpi_cray.so.12",
    "libmpi_gnu_123.so.12",
    "libmpi_gnu_91.so.12",
];

pub(super) const HANDLES: Handles = Handles {
    are_int: true,
    comm_world: Value(0x4400_0000),
    byte: Value(0x4c00_010d),
    int16: Value(0x4c00_0238),
    float: Value(0x4c00_040a),
    double: Value(0x4c00_080b),
    sum: Value(0x5800_0003),
    errors_return: Value(0x5400_0001),
};

pub(super) const CONSTANTS: Constants = Constants {
    any_source: -2,
    undefined: -32766,
    err_in_status: 17,
    tag_ub: 0x6440_0001,
    thread_levels: [0, 1, 2, 3],
    in_place: -1,
    error_string_max: 512,
    version_string_max: 8192,
    status_bytes: 20,
    status_source: 8,
    status_error: 16,
};
