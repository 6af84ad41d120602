//! Messages: a length in four little-endian bytes, and as many bytes of JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Largest message of a greeting, a request or a report of work. Values of samples and parameters are not parts of
/// messages; they follow them.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Largest message with a list: the shards of a snapshot, or results of all mini-batches.
pub const LIST_BYTES_MAX: usize = 1 << 26;

/// Sends a message.
pub fn send<T: Serialize>(stream: &mut dyn Write, message: &T) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(4 + text.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&text);
    stream.write_all(&bytes)?;
    stream.flush()
}

/// Receives a message.
///
/// Errors: those of the stream; `InvalidData` for a message that is too large or of another kind.
pub fn receive<T: DeserializeOwned>(stream: &mut dyn Read) -> io::Result<T> {
    receive_up_to(stream, MESSAGE_BYTES_MAX)
}

/// Receives a message of at most `bytes_max` bytes.
///
/// Errors: those of [`receive`].
pub fn receive_up_to<T: DeserializeOwned>(
    stream: &mut dyn Read,
    bytes_max: usize,
) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Err(invalid(&format!(
            "a message of {length} bytes; the largest has {bytes_max}"
        )));
    }
    // Grows with what comes, so that a wrong length takes no memory.
    let mut text = Vec::new();
    stream.take(length as u64).read_to_end(&mut text)?;
    if text.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&text).map_err(|error| invalid(&error.to_string()))
}

/// An error of the other side.
pub(crate) fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent_and_garbage_is_refused() {
        let mut bytes = Vec::new();
        send(&mut bytes, &(1u8, "two")).unwrap();
        let whole: (u8, String) = receive(&mut bytes.as_slice()).unwrap();
        assert_eq!(whole, (1, "two".to_owned()));
        let kind = |bytes: &[u8]| receive::<(u8, String)>(&mut { bytes }).unwrap_err().kind();
        assert_eq!(
            kind(&bytes[..bytes.len() - 1]),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(kind(b"GET / HTTP/1.1\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(&[2, 0, 0, 0, b'{', b'}']), io::ErrorKind::InvalidData);
    }
}
