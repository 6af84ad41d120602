//! The functions of a loaded library, with every status looked at, and owners of its objects.
//!
//! Source: the C API of oneDNN 3 (`dnnl.h`, `dnnl_types.h`), whose numbers are the constants here.

use libloading::os::unix::Library as Object;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

/// Number of dims in `dnnl_dims_t`.
pub(crate) const DIMS_MAX: usize = 12;

/// Extents, strides or paddings.
pub(crate) type Dims = [i64; DIMS_MAX];

/// Argument numbers of primitives.
pub(crate) mod argument {
    use std::ffi::c_int;

    pub(crate) const SOURCE: c_int = 1;
    pub(crate) const TARGET: c_int = 17;
    pub(crate) const WEIGHTS: c_int = 33;
    pub(crate) const BIAS: c_int = 41;
    pub(crate) const SCRATCHPAD: c_int = 80;
    pub(crate) const SOURCE_GRADIENT: c_int = 129;
    pub(crate) const TARGET_GRADIENT: c_int = 145;
    pub(crate) const WEIGHTS_GRADIENT: c_int = 161;
    pub(crate) const BIAS_GRADIENT: c_int = 169;
}

/// What a primitive descriptor is asked for.
pub(crate) mod query {
    use std::ffi::c_int;

    pub(crate) const IMPLEMENTATION: c_int = 8;
    pub(crate) const WEIGHTS: c_int = 131;
    pub(crate) const WEIGHTS_GRADIENT: c_int = 132;
    pub(crate) const SCRATCHPAD: c_int = 136;
}

const CPU: c_int = 1;
const F32: c_int = 3;
const ANY_FORMAT: c_int = 1;
const FORWARD_TRAINING: c_int = 64;
const DIRECT: c_int = 1;
const RELU: c_int = 32;
const SCRATCHPAD_OF_USER: c_int = 1;
const IN_ORDER: c_uint = 1;

/// A failed call of oneDNN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} gave status {status} ({})", status_text(*.status))]
pub struct OneDnnError {
    /// The C function.
    pub call: &'static str,
    /// Its `dnnl_status_t`.
    pub status: i32,
}

/// Names of `dnnl_status_t`.
fn status_text(status: i32) -> &'static str {
    match status {
        1 => "out of memory",
        2 => "invalid arguments",
        3 => "unimplemented",
        4 => "last implementation reached",
        5 => "runtime error",
        6 => "not required",
        _ => "unknown",
    }
}

/// `dnnl_version_t`.
#[repr(C)]
pub(crate) struct VersionRecord {
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
    pub(crate) patch: c_int,
    hash: *const c_char,
    pub(crate) cpu_runtime: c_uint,
    gpu_runtime: c_uint,
}

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    number: c_int,
    memory: *mut c_void,
}

type Raw = *mut c_void;
type Destroy = unsafe extern "C" fn(Raw) -> c_int;

macro_rules! table {
    ($($field:ident = $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of a library.
        pub(crate) struct Api {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            /// Errors: the name of a missing function.
            ///
            /// # Safety
            /// The library must be oneDNN 3, and stay loaded.
            pub(crate) unsafe fn load(object: &Object) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signatures are those of the headers of oneDNN 3.
                    $($field: unsafe {
                        *object
                            .get::<unsafe extern "C" fn($($argument),*) -> $result>(
                                $symbol.as_bytes(),
                            )
                            .map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}

table! {
    set_max_cpu_isa = "dnnl_set_max_cpu_isa" (c_int) -> c_int;
    engine_create = "dnnl_engine_create" (*mut Raw, c_int, usize) -> c_int;
    engine_destroy = "dnnl_engine_destroy" (Raw) -> c_int;
    stream_create = "dnnl_stream_create" (*mut Raw, Raw, c_uint) -> c_int;
    stream_wait = "dnnl_stream_wait" (Raw) -> c_int;
    stream_destroy = "dnnl_stream_destroy" (Raw) -> c_int;
    desc_with_strides = "dnnl_memory_desc_create_with_strides"
        (*mut Raw, c_int, *const i64, c_int, *const i64) -> c_int;
    desc_with_tag = "dnnl_memory_desc_create_with_tag"
        (*mut Raw, c_int, *const i64, c_int, c_int) -> c_int;
    desc_clone = "dnnl_memory_desc_clone" (*mut Raw, *const c_void) -> c_int;
    desc_size = "dnnl_memory_desc_get_size" (*const c_void) -> usize;
    desc_equal = "dnnl_memory_desc_equal" (*const c_void, *const c_void) -> c_int;
    desc_destroy = "dnnl_memory_desc_destroy" (Raw) -> c_int;
    attr_create = "dnnl_primitive_attr_create" (*mut Raw) -> c_int;
    attr_scratchpad = "dnnl_primitive_attr_set_scratchpad_mode" (Raw, c_int) -> c_int;
    attr_post_ops = "dnnl_primitive_attr_set_post_ops" (Raw, *const c_void) -> c_int;
    attr_destroy = "dnnl_primitive_attr_destroy" (Raw) -> c_int;
    post_ops_create = "dnnl_post_ops_create" (*mut Raw) -> c_int;
    post_ops_sum = "dnnl_post_ops_append_sum" (Raw, f32, i32, c_int) -> c_int;
    post_ops_eltwise = "dnnl_post_ops_append_eltwise" (Raw, c_int, f32, f32) -> c_int;
    post_ops_destroy = "dnnl_post_ops_destroy" (Raw) -> c_int;
    forward = "dnnl_convolution_forward_primitive_desc_create"
        (*mut Raw, Raw, c_int, c_int, *const c_void, *const c_void, *const c_void, *const c_void,
        *const i64, *const i64, *const i64, *const i64, *const c_void) -> c_int;
    backward_data = "dnnl_convolution_backward_data_primitive_desc_create"
        (*mut Raw, Raw, c_int, *const c_void, *const c_void, *const c_void, *const i64, *const i64,
        *const i64, *const i64, *const c_void, *const c_void) -> c_int;
    backward_weights = "dnnl_convolution_backward_weights_primitive_desc_create"
        (*mut Raw, Raw, c_int, *const c_void, *const c_void, *const c_void, *const c_void,
        *const i64, *const i64, *const i64, *const i64, *const c_void, *const c_void) -> c_int;
    reorder = "dnnl_reorder_primitive_desc_create"
        (*mut Raw, *const c_void, Raw, *const c_void, Raw, *const c_void) -> c_int;
    desc_query = "dnnl_primitive_desc_query" (*const c_void, c_int, c_int, *mut c_void) -> c_int;
    desc_query_memory = "dnnl_primitive_desc_query_md"
        (*const c_void, c_int, c_int) -> *const c_void;
    primitive_desc_destroy = "dnnl_primitive_desc_destroy" (Raw) -> c_int;
    primitive_create = "dnnl_primitive_create" (*mut Raw, *const c_void) -> c_int;
    primitive_execute = "dnnl_primitive_execute" (*const c_void, Raw, c_int, *const Argument) -> c_int;
    primitive_destroy = "dnnl_primitive_destroy" (Raw) -> c_int;
    memory_create = "dnnl_memory_create" (*mut Raw, *const c_void, Raw, Raw) -> c_int;
    memory_set_handle = "dnnl_memory_set_data_handle" (Raw, Raw) -> c_int;
    memory_destroy = "dnnl_memory_destroy" (Raw) -> c_int;
}

/// An object of the library, destroyed with its owner.
struct Owned {
    raw: Raw,
    destroy: Destroy,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object is one that the function destroys, and nobody else has it.
        let status = unsafe { (self.destroy)(self.raw) };
        assert_eq!(
            status, 0,
            "oneDNN gave status {status} for the end of an object"
        );
    }
}

/// The processor.
pub(crate) struct Engine(Owned);

// SAFETY: an engine does not change, and the library lets all threads share it.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

/// In which primitives run.
pub(crate) struct Stream(Owned);

/// Extents and format of a tensor.
pub(crate) struct MemoryDesc(Owned);

/// How a primitive is to compute.
pub(crate) struct Attributes(Owned);

/// A primitive before its code is made.
pub(crate) struct PrimitiveDesc(Owned);

/// An operation with its code.
pub(crate) struct Primitive(Owned);

/// A tensor in memory of others.
pub(crate) struct TensorMemory(Owned);

/// What a convolution adds to its sums, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PostOps {
    /// Adds to what the target has.
    pub(crate) accumulate: bool,
    /// Slope of a leaky ReLU.
    pub(crate) slope: Option<f32>,
}

/// A convolution in the terms of the library; bias may be absent.
pub(crate) struct ConvolutionDesc<'d> {
    pub(crate) source: &'d MemoryDesc,
    pub(crate) weights: &'d MemoryDesc,
    pub(crate) bias: Option<&'d MemoryDesc>,
    pub(crate) target: &'d MemoryDesc,
    pub(crate) strides: Dims,
    pub(crate) dilations: Dims,
    pub(crate) padding: [Dims; 2],
}

fn check(call: &'static str, status: c_int) -> Result<(), OneDnnError> {
    match status {
        0 => Ok(()),
        status => Err(OneDnnError { call, status }),
    }
}

/// An object that a function creates, unless it fails.
fn created(
    call: &'static str,
    destroy: Destroy,
    create: impl FnOnce(&mut Raw) -> c_int,
) -> Result<Owned, OneDnnError> {
    let mut raw = null_mut();
    check(call, create(&mut raw))?;
    Ok(Owned { raw, destroy })
}

fn raw_of(desc: Option<&MemoryDesc>) -> *const c_void {
    desc.map_or(null(), |desc| desc.0.raw)
}

impl Api {
    /// Limits the instructions; only before any other call.
    pub(crate) fn limit_instructions(&self, isa: c_int) -> Result<(), OneDnnError> {
        // SAFETY: takes any number.
        check("dnnl_set_max_cpu_isa", unsafe {
            (self.set_max_cpu_isa)(isa)
        })
    }

    pub(crate) fn engine(&self) -> Result<Engine, OneDnnError> {
        // SAFETY: the place to write is there.
        let create = |raw: &mut Raw| unsafe { (self.engine_create)(raw, CPU, 0) };
        created("dnnl_engine_create", self.engine_destroy, create).map(Engine)
    }

    pub(crate) fn stream(&self, engine: &Engine) -> Result<Stream, OneDnnError> {
        // SAFETY: the engine is of this library.
        let create = |raw: &mut Raw| unsafe { (self.stream_create)(raw, engine.0.raw, IN_ORDER) };
        created("dnnl_stream_create", self.stream_destroy, create).map(Stream)
    }

    /// A tensor of f32 with a stride for each of its dims, in elements.
    pub(crate) fn strided(
        &self,
        extents: &[i64],
        strides: &[i64],
    ) -> Result<MemoryDesc, OneDnnError> {
        assert!(extents.len() == strides.len() && extents.len() <= DIMS_MAX);
        let create = |raw: &mut Raw| {
            // SAFETY: the function reads as many extents and strides as there are dims.
            unsafe {
                (self.desc_with_strides)(
                    raw,
                    extents.len() as c_int,
                    extents.as_ptr(),
                    F32,
                    strides.as_ptr(),
                )
            }
        };
        let call = "dnnl_memory_desc_create_with_strides";
        created(call, self.desc_destroy, create).map(MemoryDesc)
    }

    /// A tensor of f32 in a format that a primitive chooses.
    pub(crate) fn in_any_format(&self, extents: &[i64]) -> Result<MemoryDesc, OneDnnError> {
        assert!(extents.len() <= DIMS_MAX);
        let create = |raw: &mut Raw| {
            // SAFETY: the function reads as many extents as there are dims.
            unsafe {
                (self.desc_with_tag)(
                    raw,
                    extents.len() as c_int,
                    extents.as_ptr(),
                    F32,
                    ANY_FORMAT,
                )
            }
        };
        let call = "dnnl_memory_desc_create_with_tag";
        created(call, self.desc_destroy, create).map(MemoryDesc)
    }

    /// Bytes of a tensor, padding of its format included.
    pub(crate) fn bytes(&self, desc: &MemoryDesc) -> usize {
        // SAFETY: the descriptor is of this library.
        unsafe { (self.desc_size)(desc.0.raw) }
    }

    pub(crate) fn are_equal(&self, a: &MemoryDesc, b: &MemoryDesc) -> bool {
        // SAFETY: both are of this library.
        unsafe { (self.desc_equal)(a.0.raw, b.0.raw) != 0 }
    }

    /// Attributes of primitives whose scratchpad the caller provides.
    pub(crate) fn attributes(&self, post_ops: PostOps) -> Result<Attributes, OneDnnError> {
        // SAFETY: the place to write is there.
        let create = |raw: &mut Raw| unsafe { (self.attr_create)(raw) };
        let made = created("dnnl_primitive_attr_create", self.attr_destroy, create)?;
        // SAFETY: the attributes are of this library.
        let status = unsafe { (self.attr_scratchpad)(made.raw, SCRATCHPAD_OF_USER) };
        check("dnnl_primitive_attr_set_scratchpad_mode", status)?;
        if post_ops != PostOps::default() {
            self.set_post_ops(&made, post_ops)?;
        }
        Ok(Attributes(made))
    }

    fn set_post_ops(&self, attributes: &Owned, post_ops: PostOps) -> Result<(), OneDnnError> {
        // SAFETY: the place to write is there.
        let create = |raw: &mut Raw| unsafe { (self.post_ops_create)(raw) };
        let list = created("dnnl_post_ops_create", self.post_ops_destroy, create)?;
        if post_ops.accumulate {
            // SAFETY: the list is of this library; type 0 is that of the target.
            let status = unsafe { (self.post_ops_sum)(list.raw, 1.0, 0, 0) };
            check("dnnl_post_ops_append_sum", status)?;
        }
        if let Some(slope) = post_ops.slope {
            // SAFETY: the list is of this library.
            let status = unsafe { (self.post_ops_eltwise)(list.raw, RELU, slope, 0.0) };
            check("dnnl_post_ops_append_eltwise", status)?;
        }
        // SAFETY: both are of this library, which copies the list.
        let status = unsafe { (self.attr_post_ops)(attributes.raw, list.raw) };
        check("dnnl_primitive_attr_set_post_ops", status)
    }

    pub(crate) fn forward(
        &self,
        engine: &Engine,
        of: &ConvolutionDesc<'_>,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, OneDnnError> {
        let [low, high] = &of.padding;
        let create = |raw: &mut Raw| {
            // SAFETY: all objects are of this library, and lists as long as the most dims.
            unsafe {
                (self.forward)(
                    raw,
                    engine.0.raw,
                    FORWARD_TRAINING,
                    DIRECT,
                    of.source.0.raw,
                    of.weights.0.raw,
                    raw_of(of.bias),
                    of.target.0.raw,
                    of.strides.as_ptr(),
                    of.dilations.as_ptr(),
                    low.as_ptr(),
                    high.as_ptr(),
                    attributes.0.raw,
                )
            }
        };
        let call = "dnnl_convolution_forward_primitive_desc_create";
        created(call, self.primitive_desc_destroy, create).map(PrimitiveDesc)
    }

    /// `forward` is the same convolution forward.
    pub(crate) fn backward_data(
        &self,
        engine: &Engine,
        of: &ConvolutionDesc<'_>,
        forward: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, OneDnnError> {
        let [low, high] = &of.padding;
        let create = |raw: &mut Raw| {
            // SAFETY: as in `forward`.
            unsafe {
                (self.backward_data)(
                    raw,
                    engine.0.raw,
                    DIRECT,
                    of.source.0.raw,
                    of.weights.0.raw,
                    of.target.0.raw,
                    of.strides.as_ptr(),
                    of.dilations.as_ptr(),
                    low.as_ptr(),
                    high.as_ptr(),
                    forward.0.raw,
                    attributes.0.raw,
                )
            }
        };
        let call = "dnnl_convolution_backward_data_primitive_desc_create";
        created(call, self.primitive_desc_destroy, create).map(PrimitiveDesc)
    }

    /// `forward` is the same convolution forward.
    pub(crate) fn backward_weights(
        &self,
        engine: &Engine,
        of: &ConvolutionDesc<'_>,
        forward: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, OneDnnError> {
        let [low, high] = &of.padding;
        let create = |raw: &mut Raw| {
            // SAFETY: as in `forward`.
            unsafe {
                (self.backward_weights)(
                    raw,
                    engine.0.raw,
                    DIRECT,
                    of.source.0.raw,
                    of.weights.0.raw,
                    raw_of(of.bias),
                    of.target.0.raw,
                    of.strides.as_ptr(),
                    of.dilations.as_ptr(),
                    low.as_ptr(),
                    high.as_ptr(),
                    forward.0.raw,
                    attributes.0.raw,
                )
            }
        };
        let call = "dnnl_convolution_backward_weights_primitive_desc_create";
        created(call, self.primitive_desc_destroy, create).map(PrimitiveDesc)
    }

    /// Copies a tensor to another format.
    pub(crate) fn reorder(
        &self,
        engine: &Engine,
        from: &MemoryDesc,
        to: &MemoryDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, OneDnnError> {
        let create = |raw: &mut Raw| {
            // SAFETY: all objects are of this library.
            unsafe {
                (self.reorder)(
                    raw,
                    from.0.raw,
                    engine.0.raw,
                    to.0.raw,
                    engine.0.raw,
                    attributes.0.raw,
                )
            }
        };
        let call = "dnnl_reorder_primitive_desc_create";
        created(call, self.primitive_desc_destroy, create).map(PrimitiveDesc)
    }

    /// Format of an operand ([`query`]) that a primitive has chosen.
    pub(crate) fn format(
        &self,
        of: &PrimitiveDesc,
        what: c_int,
    ) -> Result<MemoryDesc, OneDnnError> {
        // SAFETY: the descriptor is of this library, and what is returned belongs to it.
        let found = unsafe { (self.desc_query_memory)(of.0.raw, what, 0) };
        let create = |raw: &mut Raw| {
            if found.is_null() {
                return 2;
            }
            // SAFETY: the descriptor is one of this library.
            unsafe { (self.desc_clone)(raw, found) }
        };
        created("dnnl_memory_desc_clone", self.desc_destroy, create).map(MemoryDesc)
    }

    /// The library's name of the code that a primitive would run.
    pub(crate) fn implementation(&self, of: &PrimitiveDesc) -> Result<String, OneDnnError> {
        let mut text: *const c_char = null();
        let status = {
            let place: *mut *const c_char = &mut text;
            // SAFETY: this query writes a pointer to a text.
            unsafe { (self.desc_query)(of.0.raw, query::IMPLEMENTATION, 0, place.cast()) }
        };
        check("dnnl_primitive_desc_query", status)?;
        // SAFETY: the text ends in zero and lives as long as the descriptor.
        let text = unsafe { CStr::from_ptr(text) };
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn primitive(&self, of: &PrimitiveDesc) -> Result<Primitive, OneDnnError> {
        // SAFETY: the descriptor is of this library.
        let create = |raw: &mut Raw| unsafe { (self.primitive_create)(raw, of.0.raw) };
        created("dnnl_primitive_create", self.primitive_destroy, create).map(Primitive)
    }

    /// A tensor whose place is not known yet.
    pub(crate) fn memory(
        &self,
        engine: &Engine,
        desc: &MemoryDesc,
    ) -> Result<TensorMemory, OneDnnError> {
        let create = |raw: &mut Raw| {
            // SAFETY: both are of this library; a null pointer is no memory.
            unsafe { (self.memory_create)(raw, desc.0.raw, engine.0.raw, null_mut()) }
        };
        created("dnnl_memory_create", self.memory_destroy, create).map(TensorMemory)
    }

    /// Puts a tensor at a place.
    pub(crate) fn set_place(
        &self,
        memory: &TensorMemory,
        place: *mut f32,
    ) -> Result<(), OneDnnError> {
        // SAFETY: nothing is read or written there before a primitive is executed.
        let status = unsafe { (self.memory_set_handle)(memory.0.raw, place.cast()) };
        check("dnnl_memory_set_data_handle", status)
    }

    /// Executes a primitive and waits for its end.
    ///
    /// # Safety
    /// All tensors are at places that hold them, and nobody else accesses those that are written.
    pub(crate) unsafe fn execute<'m>(
        &self,
        primitive: &Primitive,
        stream: &Stream,
        arguments: impl Iterator<Item = (c_int, &'m TensorMemory)>,
    ) -> Result<(), OneDnnError> {
        let none = Argument {
            number: 0,
            memory: null_mut(),
        };
        let (mut list, mut count) = ([none; 8], 0);
        for (number, memory) in arguments {
            let memory = memory.0.raw;
            list[count] = Argument { number, memory };
            count += 1;
        }
        // SAFETY: the caller vouches for the tensors; the list is as long as stated.
        let status = unsafe {
            (self.primitive_execute)(primitive.0.raw, stream.0.raw, count as c_int, list.as_ptr())
        };
        check("dnnl_primitive_execute", status)?;
        // SAFETY: the stream is of this library.
        check("dnnl_stream_wait", unsafe {
            (self.stream_wait)(stream.0.raw)
        })
    }
}
