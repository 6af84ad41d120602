//! Requests and replies between processes, as bytes.

use partita_data::Split;
use partita_formats::Samples;
use partita_program::Item;

use crate::plain_files::Wanted;

const REQUEST_BYTES: usize = 8 * 13;
const REPLY_BYTES: usize = 16;

/// A message between the stores of two processes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// Asks the owner for a part of a unit.
    Request { id: u64, epoch: u64, wanted: Wanted },
    /// Its elements, or why there are none.
    Reply {
        id: u64,
        answer: Result<Samples, String>,
    },
}

impl Message {
    /// Little-endian: a request is 13 numbers of 8 bytes; a reply is its number, the kind of its content, and that.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Message::Request { id, epoch, wanted } => {
                let [c, d, h, w] = wanted.region.clone();
                let bounds = [c, d, h, w].map(|range| [range.start, range.end]);
                let head = [
                    1,
                    *id,
                    *epoch,
                    wanted.item as u64 * 3 + wanted.split as u64,
                    wanted.volume as u64,
                ];
                let bounds = bounds.into_iter().flatten().map(|bound| bound as u64);
                head.into_iter()
                    .chain(bounds)
                    .flat_map(u64::to_le_bytes)
                    .collect()
            }
            Message::Reply { id, answer } => {
                let kind: u32 = match answer {
                    Ok(Samples::I16(_)) => 0,
                    Ok(Samples::F32(_)) => 1,
                    Err(_) => 2,
                };
                let mut bytes = Vec::new();
                let content = match answer {
                    Ok(samples) => samples.len() * samples.dtype().size_bytes(),
                    Err(reason) => reason.len(),
                };
                bytes.reserve_exact(REPLY_BYTES + content);
                bytes.extend_from_slice(&2u32.to_le_bytes());
                bytes.extend_from_slice(&kind.to_le_bytes());
                bytes.extend_from_slice(&id.to_le_bytes());
                match answer {
                    Ok(Samples::I16(values)) => {
                        values
                            .iter()
                            .for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                    }
                    Ok(Samples::F32(values)) => {
                        values
                            .iter()
                            .for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                    }
                    Err(reason) => bytes.extend_from_slice(reason.as_bytes()),
                }
                bytes
            }
        }
    }

    /// The number of the request that a message answers; `None` if it is no reply.
    pub(crate) fn reply_id(bytes: &[u8]) -> Option<u64> {
        let head = bytes.get(..REPLY_BYTES)?;
        let is_reply = head[..4] == 2u32.to_le_bytes();
        let id = head[8..].try_into().ok()?;
        is_reply.then(|| u64::from_le_bytes(id))
    }

    /// `None` for bytes that are no message.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.get(..4)? {
            [1, 0, 0, 0] => request(bytes),
            [2, 0, 0, 0] => reply(bytes),
            _ => None,
        }
    }
}

fn request(bytes: &[u8]) -> Option<Message> {
    if bytes.len() != REQUEST_BYTES {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    let number = |index: usize| u64::from_le_bytes(words[index]);
    let items = [Item::Sample, Item::Target];
    let kind = number(3) as usize;
    let bound = |index: usize| number(5 + index) as usize;
    Some(Message::Request {
        id: number(1),
        epoch: number(2),
        wanted: Wanted {
            item: *items.get(kind / 3)?,
            split: Split::ALL[kind % 3],
            volume: number(4) as usize,
            region: std::array::from_fn(|dim| bound(2 * dim)..bound(2 * dim + 1)),
        },
    })
}

fn reply(bytes: &[u8]) -> Option<Message> {
    let id = Message::reply_id(bytes)?;
    let (head, content) = bytes.split_at(REPLY_BYTES);
    let answer = match head[4] {
        0 => {
            let (values, _) = content.as_chunks::<2>();
            Ok(Samples::I16(
                values
                    .iter()
                    .map(|&bytes| i16::from_le_bytes(bytes))
                    .collect(),
            ))
        }
        1 => {
            let (values, _) = content.as_chunks::<4>();
            Ok(Samples::F32(
                values
                    .iter()
                    .map(|&bytes| f32::from_le_bytes(bytes))
                    .collect(),
            ))
        }
        2 => Err(String::from_utf8_lossy(content).into_owned()),
        _ => return None,
    };
    Some(Message::Reply { id, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let wanted = Wanted {
            item: Item::Target,
            split: Split::Validation,
            volume: 7,
            region: [0..1, 2..4, 3..9, 0..5],
        };
        let answers = [
            Ok(Samples::I16(vec![1, -2, i16::MIN])),
            Ok(Samples::F32(vec![0.5, -1e-30])),
            Ok(Samples::I16(Vec::new())),
            Err("file.h5 cannot be opened".to_owned()),
        ];
        let replies = answers
            .into_iter()
            .map(|answer| Message::Reply { id: 3, answer });
        let request = Message::Request {
            id: u64::MAX,
            epoch: 2,
            wanted,
        };
        for message in replies.chain([request]) {
            let bytes = message.to_bytes();
            assert_eq!(Message::from_bytes(&bytes), Some(message));
            assert_eq!(Message::from_bytes(&bytes[..3]), None);
        }
        assert_eq!(Message::from_bytes(&[9; 104]), None);
    }
}
