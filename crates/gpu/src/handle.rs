//! Handles of what a driver holds.

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub(crate) struct $name(pub(crate) usize);

            impl From<$name> for Object {
                fn from(handle: $name) -> Self {
                    Self::$kind(handle)
                }
            }
        )*

        /// A handle of any kind.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Object {
            $($kind($name),)*
        }
    };
}

handles! {
    /// Memory of a device, as kernels take it; the default is no memory.
    BufferHandle => Buffer;
    /// Runs commands in the order in which they are given.
    QueueHandle => Queue;
    /// A command that was given to a queue.
    EventHandle => Event;
    /// The compiled sources.
    ModuleHandle => Module;
    /// A kernel of a module.
    KernelHandle => Kernel;
}
