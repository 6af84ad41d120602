//! Pointers of Git LFS, which stand where a file was not fetched.

/// How a pointer of Git LFS begins.
///
/// Source: Git LFS specification, "The Pointer".
pub const LFS: &[u8] = b"version https://git-lfs";
/// What a pointer of Git LFS is, and what to do.
pub const LFS_REMEDY: &str = "it is a pointer of Git LFS, and the file itself is not there; `git lfs pull` in its \
                          repository fetches it";
