//! Import and resampling of images.
//!
//! Import turns planar images into channels-last ones; resampling is upsampling, padding and means over windows.
//! Both share the rows along W of what they write among the threads.

pub(crate) mod import;
pub(crate) mod resample;
