//! Packed elements on their way between ranks.

use crate::allocation::handling_failure;
use crate::{Element, Memory};
use partita_program::{Dtype, View};
use std::ops::AddAssign;

/// Packed elements of one dtype.
#[derive(Clone, Debug, PartialEq)]
pub enum Packet {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// 16-bit integers.
    I16(Vec<i16>),
}

/// Evaluates an expression on the elements of a packet, whatever their type.
macro_rules! on_elements {
    ($packet:expr, $elements:ident => $value:expr) => {
        match $packet {
            Packet::F32($elements) => $value,
            Packet::F64($elements) => $value,
            Packet::I16($elements) => $value,
        }
    };
}

/// Evaluates an expression with the element type of a dtype under a name.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $value:expr) => {
        match $dtype {
            partita_program::Dtype::F32 => {
                type $type = f32;
                $value
            }
            partita_program::Dtype::F64 => {
                type $type = f64;
                $value
            }
            partita_program::Dtype::I16 => {
                type $type = i16;
                $value
            }
        }
    };
}

pub(crate) use {on_elements, with_type};

/// What packets hold.
pub(crate) trait Number: Element + AddAssign {
    /// The elements of a packet of this type.
    fn of(packet: &mut Packet) -> &mut Vec<Self>;

    /// A packet of these elements.
    fn packet(elements: Vec<Self>) -> Packet;
}

macro_rules! number {
    ($type:ty, $kind:ident) => {
        impl Number for $type {
            fn of(packet: &mut Packet) -> &mut Vec<Self> {
                let dtype = packet.dtype();
                if let Packet::$kind(elements) = packet {
                    return elements;
                }
                panic!("{dtype:?} in a message of {:?}", Self::DTYPE)
            }

            fn packet(elements: Vec<Self>) -> Packet {
                Packet::$kind(elements)
            }
        }
    };
}

number!(f32, F32);
number!(f64, F64);
number!(i16, I16);

impl Packet {
    /// An empty one that can take so many elements.
    pub fn with_room(dtype: Dtype, elements: usize) -> Self {
        match dtype {
            Dtype::F32 => Packet::F32(Vec::with_capacity(elements)),
            Dtype::F64 => Packet::F64(Vec::with_capacity(elements)),
            Dtype::I16 => Packet::I16(Vec::with_capacity(elements)),
        }
    }

    /// The same, if the system has memory for it.
    pub fn if_possible(dtype: Dtype, elements: usize) -> Option<Self> {
        let mut packet = Packet::with_room(dtype, 0);
        let reserved = handling_failure(
            || on_elements!(&mut packet, own => own.try_reserve_exact(elements).is_ok()),
        );
        reserved.then_some(packet)
    }

    /// Takes the smallest of the free packets with room for so many elements, or makes one.
    pub fn take_from(free: &mut Vec<Packet>, dtype: Dtype, elements: usize) -> Self {
        let fits = |packet: &Packet| packet.dtype() == dtype && packet.room() >= elements;
        let candidates = free.iter().enumerate();
        let best = candidates
            .filter(|(_, packet)| fits(packet))
            .min_by_key(|(_, packet)| packet.room())
            .map(|(at, _)| at);
        match best {
            Some(at) => free.swap_remove(at),
            None => Packet::with_room(dtype, elements),
        }
    }

    /// Its elements one after the other.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        on_elements!(self, elements => elements.iter().flat_map(|it| it.to_le_bytes()).collect())
    }

    /// From the bytes of all its elements.
    pub fn from_le_bytes(dtype: Dtype, bytes: &[u8]) -> Self {
        with_type!(dtype, T => {
            let (words, rest) = bytes.as_chunks();
            assert!(rest.is_empty(), "whole elements of {dtype:?}");
            T::packet(words.iter().map(|&word| T::from_le_bytes(word)).collect())
        })
    }

    /// Of its elements.
    pub fn dtype(&self) -> Dtype {
        match self {
            Packet::F32(_) => Dtype::F32,
            Packet::F64(_) => Dtype::F64,
            Packet::I16(_) => Dtype::I16,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        on_elements!(self, elements => elements.len())
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Holds so many elements, with whatever contents, to be overwritten.
    pub fn resize(&mut self, elements: usize) {
        on_elements!(self, own => own.resize(elements, Default::default()));
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        (self.len() * self.dtype().size()) as u64
    }

    /// Elements that it can take without a new allocation.
    pub fn room(&self) -> usize {
        on_elements!(self, elements => elements.capacity())
    }

    /// Becomes the contents of a view.
    pub fn pack(&mut self, memory: &Memory<'_>, view: &View) {
        on_elements!(self, elements => memory.pack(view, elements));
    }

    /// Sets, or adds to, the contents of a view.
    pub fn unpack(&self, memory: &Memory<'_>, view: &View, accumulate: bool) {
        on_elements!(self, elements => memory.unpack(view, elements, accumulate));
    }
}
