//! Visits the views of a kernel.

use crate::{
    Activation, ClassTerms, Direction, Distribution, DropoutMask, ElementFunction, Optimizer,
    PoolKind, Taps, Transform, View,
};
use partita_space::{AttentionWindow, Resampling};

/// A field of a kernel.
pub(crate) trait EachView {
    /// Calls `f` with each view of the field.
    fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View));
}

impl EachView for View {
    fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        f(self);
    }
}

impl<T: EachView> EachView for Option<T> {
    fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        self.iter_mut().for_each(|field| field.each_view_mut(f));
    }
}

impl<T: EachView> EachView for Vec<T> {
    fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        self.iter_mut().for_each(|field| field.each_view_mut(f));
    }
}

impl<T: EachView> EachView for (T, f64) {
    fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        self.0.each_view_mut(f);
    }
}

/// Fields without views.
macro_rules! constants {
    ($($type:ty),*) => {
        $( impl EachView for $type {
            fn each_view_mut(&mut self, _: &mut dyn FnMut(&mut View)) {}
        } )*
    };
}

constants!(
    bool,
    f64,
    u32,
    u64,
    usize,
    [bool; 3],
    [i64; 3],
    [usize; 3],
    [usize; 5],
    [Resampling; 3],
    i64,
    Activation,
    AttentionWindow,
    DropoutMask,
    ClassTerms,
    Direction,
    ElementFunction,
    Optimizer,
    Distribution,
    PoolKind,
    Taps,
    Transform
);
