//! The secret of a user, which both sides of a connection prove that they have, before anything else is read or told.
//!
//! Each side sends random bytes, and answers those of the other side with a keyed digest (HMAC with SHA-256). So the
//! secret itself never travels, and what was overheard proves nothing in another connection. What follows is neither
//! encrypted nor signed.

use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a nonce and of a proof.
const LENGTH: usize = 32;
/// Fewest and most bytes of a file with a secret.
const FILE_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;
const BLOCK: usize = 64;

/// Random bytes that are used once.
pub(crate) type Nonce = [u8; LENGTH];

/// A secret that both sides of a connection have.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// A file that cannot be taken as a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read or made.
    #[error("the secret in {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Others may read it.
    #[error(
        "the secret in {path} may be read by others; help: chmod 600 {path}, or make a new one, as they may know it",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// It is too short or too long.
    #[error(
        "the secret in {path} has {bytes} bytes; help: possible values: {} to {} random bytes, as of `openssl rand -hex 32`",
        FILE_BYTES.start(),
        FILE_BYTES.end(),
        path = path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its bytes, or more than are possible.
        bytes: usize,
    },
}

/// Who proves to have the secret.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Trainer,
    Server,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret in a file that its owner alone may read.
    ///
    /// Errors: it cannot be read, others may read it, or it is shorter than 16 bytes.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let failed = |error| SecretError::File {
            path: path.to_owned(),
            error,
        };
        // A pipe must not make the process wait.
        let file = partita_files::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(SecretError::Open {
                path: path.to_owned(),
            });
        }
        let mut bytes = Vec::new();
        let most = *FILE_BYTES.end() as u64 + 1;
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        if !FILE_BYTES.contains(&bytes.len()) {
            return Err(SecretError::Length {
                path: path.to_owned(),
                bytes: bytes.len(),
            });
        }
        Ok(Self(bytes))
    }

    /// The secret in a file, which is made with random bytes if it is missing.
    ///
    /// Errors: those of [`read`](Self::read), and those of the folder.
    pub fn of_user(path: &Path) -> Result<Self, SecretError> {
        if !path.exists() {
            Self::make(path).map_err(|error| SecretError::File {
                path: path.to_owned(),
                error,
            })?;
        }
        Self::read(path)
    }

    /// Makes a file whole, unless another process did meanwhile.
    fn make(path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let random: String = random()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let own = folder.join(format!("secret-{}", &random[..16]));
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&own)?;
        let linked = file
            .write_all(&random.as_bytes()[16..])
            .and_then(|()| fs::hard_link(&own, path));
        fs::remove_file(&own)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// What a side answers to both nonces, that of the server first.
    pub(crate) fn proof(&self, side: Side, nonces: [&Nonce; 2]) -> [u8; LENGTH] {
        let word: &[u8] = match side {
            Side::Trainer => b"trainer",
            Side::Server => b"server",
        };
        hmac(&self.0, &[word, nonces[0], nonces[1]])
    }

    /// Whether a side has the secret. Takes the same time whatever it answered.
    pub(crate) fn is_proven(&self, side: Side, nonces: [&Nonce; 2], answer: &[u8; LENGTH]) -> bool {
        let proof = self.proof(side, nonces);
        let differing = proof
            .iter()
            .zip(answer)
            .fold(0, |bits, (a, b)| bits | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

/// Random bytes of the system.
pub(crate) fn random() -> io::Result<Nonce> {
    let mut bytes = [0; LENGTH];
    #[allow(clippy::disallowed_methods, reason = "a device that the system has")]
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// RFC 2104.
fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; LENGTH] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..LENGTH].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let keyed = |pad: u8| Sha256::new_with_prefix(block.map(|byte| byte ^ pad));
    let mut inner = keyed(0x36);
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = keyed(0x5c);
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn proofs_are_keyed_digests() {
        // RFC 4231, cases 2 and 6.
        assert_eq!(
            hex(&hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(
            hex(&hmac(&[0xaa; 131], &[text])),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn a_proof_holds_for_its_side_its_nonces_and_its_secret() {
        let (own, other) = (Secret(vec![1; 32]), Secret(vec![2; 32]));
        let nonces = [&[3; LENGTH], &[4; LENGTH]];
        let proof = own.proof(Side::Trainer, nonces);
        assert!(own.is_proven(Side::Trainer, nonces, &proof));
        assert!(!own.is_proven(Side::Server, nonces, &proof));
        assert!(!own.is_proven(Side::Trainer, [nonces[1], nonces[0]], &proof));
        assert!(!other.is_proven(Side::Trainer, nonces, &proof));
    }

    #[test]
    fn a_secret_is_made_once_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("secret");
        let made = Secret::of_user(&path).unwrap();
        assert_eq!(Secret::of_user(&path).unwrap().0, made.0);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Secret::read(&path), Err(SecretError::Open { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        let refused = Secret::read(&path).unwrap_err().to_string();
        assert!(refused.contains("has 5 bytes"), "{refused}");
        assert!(matches!(
            Secret::read(folder.path()),
            Err(SecretError::File { .. })
        ));
    }
}
