//! Addresses of processes, and byte streams between them.

use partita_space::Help;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
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
#[error("`{text}` is no address{}", Help::possible("HOST:PORT and unix:PATH").code(nearest))]
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
            Self::Unix(path) => UnixStream::connect(path).map(Stream::from),
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
pub struct Stream {
    socket: Connected,
    /// When reads and writes fail.
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self {
            socket: Connected::Unix(stream),
            deadline: None,
        }
    }
}

impl Stream {
    fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Requests are small, and a loader should see them at once.
        stream.set_nodelay(true)?;
        Ok(Self {
            socket: Connected::Tcp(stream),
            deadline: None,
        })
    }

    /// The same connection, to read in one thread and write in another. It has no deadline.
    pub fn try_clone(&self) -> io::Result<Self> {
        let socket = match &self.socket {
            Connected::Tcp(stream) => stream.try_clone().map(Connected::Tcp),
            Connected::Unix(stream) => stream.try_clone().map(Connected::Unix),
        }?;
        Ok(Self {
            socket,
            deadline: None,
        })
    }

    /// Longest wait of one read or write without a deadline; `None` for no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.deadline = None;
        self.set_read_timeout(limit)?;
        self.set_write_timeout(limit)
    }

    /// After this time all reads and writes together fail, however little each of them waits.
    pub fn set_deadline(&mut self, wait: Duration) {
        self.deadline = Instant::now().checked_add(wait);
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Connected::Tcp(stream) => stream.set_read_timeout(limit),
            Connected::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Connected::Tcp(stream) => stream.set_write_timeout(limit),
            Connected::Unix(stream) => stream.set_write_timeout(limit),
        }
    }

    /// What is left until the deadline. Errors: nothing is.
    fn rest(&self) -> io::Result<Option<Duration>> {
        let rest = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match rest {
            Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
            rest => Ok(rest),
        }
    }

    /// Ends the connection in both directions, for all clones.
    pub fn close(&self) {
        // It may be closed already.
        let _ = match &self.socket {
            Connected::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Connected::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(rest) = self.rest()? {
            self.set_read_timeout(Some(rest))?;
        }
        match &mut self.socket {
            Connected::Tcp(stream) => stream.read(buffer),
            Connected::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if let Some(rest) = self.rest()? {
            self.set_write_timeout(Some(rest))?;
        }
        match &mut self.socket {
            Connected::Tcp(stream) => stream.write(buffer),
            Connected::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.socket {
            Connected::Tcp(stream) => stream.flush(),
            Connected::Unix(stream) => stream.flush(),
        }
    }
}

/// Accepts connections. Its socket file is removed when it is dropped, if it is still its own.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// Device and number of the socket file.
    file: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at an address. A socket file at which nobody listens any more is replaced; another file never is.
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
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        remove_abandoned(path)?;
                        UnixListener::bind(path)
                    }
                    bound => bound,
                }?;
                socket.set_nonblocking(true)?;
                (Socket::Unix(socket), address.clone())
            }
        };
        let file = match &address {
            Address::Unix(path) => identity(path).ok(),
            Address::Tcp(_) => None,
        };
        Ok(Self {
            socket,
            address,
            file,
        })
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
                Ok((Stream::from(stream), self.address.to_string()))
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

/// Device and number of a file, which a link does not stand for.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Removes a socket file that a killed process left.
///
/// Errors: it is no socket, or somebody listens there, or perhaps does.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let text = "a file that is no socket is there, and stays";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
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
        if let Address::Unix(path) = &self.address
            && self.file.is_some()
            && identity(path).ok() == self.file
        {
            // Somebody may remove it at the same time.
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

    #[test]
    fn other_files_at_the_address_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis.txt");
        fs::write(&path, "text").unwrap();
        let error = Listener::bind(&Address::Unix(path.clone())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Listener::bind(&Address::Unix(link.clone())).is_err());
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        // A file that takes the place of the own socket stays, too.
        let socket = folder.path().join("socket");
        let listener = Listener::bind(&Address::Unix(socket.clone())).unwrap();
        fs::remove_file(&socket).unwrap();
        fs::write(&socket, "text").unwrap();
        drop(listener);
        assert_eq!(fs::read_to_string(&socket).unwrap(), "text");
    }

    #[test]
    fn a_peer_that_drips_meets_the_deadline() {
        let (own, mut other) = UnixStream::pair().unwrap();
        let mut own = Stream::from(own);
        let dripping = thread::spawn(move || {
            while other.write_all(b".").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        own.set_deadline(Duration::from_millis(60));
        let mut much = [0; 1 << 16];
        let error = own.read_exact(&mut much).unwrap_err();
        let is_late = matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        );
        assert!(is_late, "{error}");
        drop(own);
        dripping.join().unwrap();
    }
}
