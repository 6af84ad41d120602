//! Addresses of processes, and byte streams between them.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

const UNIX: &str = "unix:";
/// Pause between two attempts to connect or to accept.
const POLL: Duration = Duration::from_millis(20);

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`; port 0 takes a free one when listening.
    Tcp(String),
    /// `unix:PATH`, a socket file.
    Unix(PathBuf),
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no address; possible are HOST:PORT, like `{nearest}`, and unix:PATH")]
pub struct AddressError {
    text: String,
    nearest: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix(UNIX).filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && is_port(port) => {
                Ok(Self::Tcp(text.to_owned()))
            }
            Some(_) | None => {
                let host = text.split(':').next().filter(|host| !host.is_empty());
                Err(AddressError {
                    text: text.to_owned(),
                    nearest: format!("{}:7700", host.unwrap_or("localhost")),
                })
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => f.write_str(text),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Address {
    /// Connects; while nobody listens there, tries again until `patience` is over.
    ///
    /// Errors: the last attempt's.
    pub fn connect(&self, patience: Duration) -> io::Result<Stream> {
        let end = Instant::now() + patience;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            match self.connect_once(rest.max(POLL)) {
                Err(error) if !rest.is_zero() && may_come(&error) => thread::sleep(POLL),
                done => return done,
            }
        }
    }

    fn connect_once(&self, limit: Duration) -> io::Result<Stream> {
        match self {
            Self::Tcp(text) => {
                let mut failure = io::Error::from(io::ErrorKind::NotFound);
                for address in text.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => return Stream::tcp(stream),
                        Err(error) => failure = error,
                    }
                }
                Err(failure)
            }
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        }
    }
}

/// Whether whoever should listen may only not have started yet.
fn may_come(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound | io::ErrorKind::TimedOut
    )
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a socket file.
    Unix(UnixStream),
}

impl Stream {
    fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Requests are small, and a loader should see them at once.
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// The same connection, to read in one thread and write in another.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Longest wait of a read or a write; `None` for no limit.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
        }
    }

    /// Ends the connection in both directions, for all clones.
    pub fn close(&self) {
        // It may be closed already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}

/// Accepts connections. A socket file is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at an address. A socket file that a killed process left is replaced.
    ///
    /// Errors: the address is taken or not of this host.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let (socket, address) = match address {
            Address::Tcp(text) => {
                let socket = TcpListener::bind(text)?;
                socket.set_nonblocking(true)?;
                let port = socket.local_addr()?.port();
                let host = text.rsplit_once(':').map_or("", |(host, _)| host);
                (Socket::Tcp(socket), Address::Tcp(format!("{host}:{port}")))
            }
            Address::Unix(path) => {
                let socket = match UnixListener::bind(path) {
                    Err(error)
                        if error.kind() == io::ErrorKind::AddrInUse
                            && UnixStream::connect(path).is_err() =>
                    {
                        fs::remove_file(path)?;
                        UnixListener::bind(path)
                    }
                    bound => bound,
                }?;
                socket.set_nonblocking(true)?;
                (Socket::Unix(socket), address.clone())
            }
        };
        Ok(Self { socket, address })
    }

    /// The address, with the port that was taken.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next connection and a name of its other side. `None` if nobody connects for a moment.
    pub fn accept(&self) -> io::Result<Option<(Stream, String)>> {
        let accepted = match &self.socket {
            Socket::Tcp(socket) => socket.accept().and_then(|(stream, peer)| {
                stream.set_nonblocking(false)?;
                Ok((Stream::tcp(stream)?, peer.to_string()))
            }),
            Socket::Unix(socket) => socket.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                Ok((Stream::Unix(stream), self.address.to_string()))
            }),
        };
        match accepted {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_passing(&error) => {
                thread::sleep(POLL);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a later attempt may succeed: nobody is there, or a peer or a signal ended the attempt.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Somebody may have removed it.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_and_socket_files() {
        for text in ["localhost:0", "10.0.0.7:7700", "[::1]:9", "unix:/tmp/a b"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for (text, nearest) in [
            ("node7", "node7:7700"),
            ("node7:", "node7:7700"),
            ("node7:70000", "node7:7700"),
            (":80", "localhost:7700"),
            ("unix:", "unix:7700"),
        ] {
            let refused = text.parse::<Address>().unwrap_err().to_string();
            assert!(
                refused.contains(text) && refused.contains(nearest),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_socket_file_of_a_dead_process_is_replaced_and_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = Address::Unix(path.clone());
        // Without `Listener`, the file stays when the socket is closed.
        drop(UnixListener::bind(&path).unwrap());
        let live = Listener::bind(&address).unwrap();
        let error = Listener::bind(&address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(address.connect(Duration::ZERO).is_ok());
        drop(live);
        assert!(!path.exists());
    }
}
