//! A study in the browser while it runs: its progress, and each cell as soon as its record exists.
//!
//! *Invariant*: only records and logs of the study are served, and nothing is changed. A request to the name of another
//! host is refused, so that a foreign site cannot read the page by a name that it points at this machine.

mod folder;
mod request;
mod server;

pub use self::server::Server;
