//! The Python package `partita`: what its Python files call.
//!
//! Does: runs verbs on a thread of their own without the lock of the interpreter, hands events and epochs to the calling
//! thread, reads samples of Python objects, and raises the errors of verbs.
//! Knows: the library `partita`, the arguments of the command line, the interpreter.
//! Must not know: how a verb computes its result, numpy, PyTorch. What those need is in the Python files.

mod errors;
mod source;
mod verbs;
mod work;

use pyo3::prelude::*;

/// The compiled part of the package `partita`.
#[pymodule]
fn _partita(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", python.get_type::<errors::Error>())?;
    module.add("RequestError", python.get_type::<errors::RequestError>())?;
    module.add("FailureError", python.get_type::<errors::FailureError>())?;
    module.add_function(wrap_pyfunction!(verbs::call, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::train, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::forward, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::finalize, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::main, module)?)?;
    Ok(())
}
