//! tar archives, compressed or not.

mod compress;
mod decompress;
mod header;
mod pax;
mod sink;
mod source;
mod sparse;

pub use compress::{Compressed, Compression};
pub use decompress::{decompressed, is_compressed};
pub use sink::{Holes, TarSink};
pub use source::TarSource;
