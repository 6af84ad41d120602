//! Open MPI. Source: `mpi.h` of Open MPI 4.1.4 (Debian 12, libopenmpi-dev); the same in 5.0.

use super::{Constants, Handles, Predefined::Symbol};

pub(super) const FILES: [&str; 3] = ["libmpi.so.40", "libmpi.so.80", "libmpi.so"];

pub(super) const HANDLES: Handles = Handles {
    are_int: false,
    comm_world: Symbol("ompi_mpi_comm_world"),
    byte: Symbol("ompi_mpi_byte"),
    int16: Symbol("ompi_mpi_int16_t"),
    float: Symbol("ompi_mpi_float"),
    double: Symbol("ompi_mpi_double"),
    sum: Symbol("ompi_mpi_op_sum"),
    errors_return: Symbol("ompi_mpi_errors_return"),
};

pub(super) const CONSTANTS: Constants = Constants {
    any_source: -1,
    undefined: -32766,
    err_in_status: 18,
    tag_ub: 0,
    thread_levels: [0, 1, 2, 3],
    in_place: 1,
    error_string_max: 256,
    version_string_max: 256,
    status_bytes: 24,
    status_source: 0,
    status_error: 8,
};
