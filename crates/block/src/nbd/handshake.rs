//! The handshake: fixed newstyle, one export under every name.

use std::io::{self, Read, Write};

use super::{MAX_REQUEST_BYTES, wire::*};
use crate::Export;

/// Maximum length in bytes of an option's data that is read.
const MAX_OPTION_BYTES: u32 = 64 << 10;
/// Maximum number of options from one client.
const MAX_OPTIONS: usize = 1000;
/// The only supported metadata context, and its number.
const ALLOCATION: &str = "base:allocation";
pub const ALLOCATION_ID: u32 = 1;

/// Features agreed on by client and server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Session {
    /// True if replies may be structured.
    pub structured: bool,
    /// True if the client may request block status.
    pub allocation: bool,
}

/// Performs the handshake. Before the transmission phase, `admit` must give the client a connection slot.
/// Returns None if the client left properly or got no slot.
pub fn handshake(
    stream: &mut (impl Read + Write),
    export: &(impl Export + ?Sized),
    mut admit: impl FnMut() -> bool,
) -> io::Result<Option<Session>> {
    let client_flags = greet(stream)?;
    let mut handshake = Handshake { stream, export, client_flags, session: Session::default() };
    for _ in 0..MAX_OPTIONS {
        let Some((option, data)) = handshake.read_option()? else { continue };
        match handshake.answer(option, &data, &mut admit)? {
            Next::Option => {}
            Next::Transmission => return Ok(Some(handshake.session)),
            Next::End => return Ok(None),
        }
    }
    Err(invalid("the client sends too many options"))
}

/// Greets the client, and returns its flags.
fn greet(stream: &mut (impl Read + Write)) -> io::Result<u32> {
    let mut greeting = Vec::new();
    greeting.extend(INIT_MAGIC.to_be_bytes());
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    stream.write_all(&greeting)?;
    let client_flags = read_u32(stream)?;
    if client_flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
        return Err(invalid("the client sets flags that were not offered"));
    }
    Ok(client_flags)
}

/// The phase after an option.
enum Next {
    /// The client sends another option.
    Option,
    /// The transmission phase begins.
    Transmission,
    /// The connection ends.
    End,
}

/// A handshake whose client has been greeted.
struct Handshake<'a, S, E: ?Sized> {
    stream: &'a mut S,
    export: &'a E,
    client_flags: u32,
    session: Session,
}

impl<S: Read + Write, E: Export + ?Sized> Handshake<'_, S, E> {
    /// Reads an option and its data. Refuses one that is too long, and returns None for it.
    fn read_option(&mut self) -> io::Result<Option<(u32, Vec<u8>)>> {
        if read_u64(self.stream)? != OPTION_MAGIC {
            return Err(invalid("expected an option"));
        }
        let option = read_u32(self.stream)?;
        let length = read_u32(self.stream)?;
        if length > MAX_OPTION_BYTES {
            skip(self.stream, u64::from(length))?;
            self.reply(option, REP_ERR_TOO_BIG, b"the option is too long")?;
            return Ok(None);
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Some((option, data)))
    }

    fn answer(&mut self, option: u32, data: &[u8], admit: &mut impl FnMut() -> bool) -> io::Result<Next> {
        match option {
            OPT_EXPORT_NAME => return self.export_name(admit),
            OPT_ABORT => {
                self.reply(option, REP_ACK, &[])?;
                return Ok(Next::End);
            }
            OPT_LIST if data.is_empty() => {
                // The default export has the empty name.
                self.reply(option, REP_SERVER, &0u32.to_be_bytes())?;
                self.reply(option, REP_ACK, &[])?;
            }
            OPT_INFO | OPT_GO => return self.info(option, data, admit),
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.session.structured = true;
                self.reply(option, REP_ACK, &[])?;
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.meta_context(option, data)?,
            OPT_LIST | OPT_STRUCTURED_REPLY => {
                self.reply(option, REP_ERR_INVALID, b"the option takes no data")?;
            }
            _ => self.reply(option, REP_ERR_UNSUP, b"")?,
        }
        Ok(Next::Option)
    }

    /// Begins the transmission phase in the old way. This option has no error reply.
    fn export_name(&mut self, admit: &mut impl FnMut() -> bool) -> io::Result<Next> {
        if !admit() {
            return Ok(Next::End);
        }
        let mut answer = self.export_facts();
        if self.client_flags & u32::from(FLAG_NO_ZEROES) == 0 {
            answer.extend([0; EXPORT_ZEROES]);
        }
        self.stream.write_all(&answer)?;
        Ok(Next::Transmission)
    }

    /// Returns the size of the export and the flags of the transmission phase.
    fn export_facts(&self) -> Vec<u8> {
        let mut facts = self.export.geometry().size_bytes.to_be_bytes().to_vec();
        facts.extend(transmission_flags(self.export, self.session).to_be_bytes());
        facts
    }

    /// Describes the export; for GO, begins the transmission phase.
    fn info(&mut self, option: u32, data: &[u8], admit: &mut impl FnMut() -> bool) -> io::Result<Next> {
        let Some(wanted) = parse_info(data) else {
            self.reply(option, REP_ERR_INVALID, b"the request is truncated")?;
            return Ok(Next::Option);
        };
        if option == OPT_GO && !admit() {
            self.reply(option, REP_ERR_POLICY, b"too many clients")?;
            return Ok(Next::Option);
        }
        let info = [&INFO_EXPORT.to_be_bytes()[..], &self.export_facts()].concat();
        self.reply(option, REP_INFO, &info)?;
        if let Some(text) = self.export.description().filter(|_| wanted.contains(&INFO_DESCRIPTION)) {
            self.reply(option, REP_INFO, &[&INFO_DESCRIPTION.to_be_bytes()[..], text.as_bytes()].concat())?;
        }
        if wanted.contains(&INFO_BLOCK_SIZE) {
            let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [1, 4096, MAX_REQUEST_BYTES] {
                info.extend(size.to_be_bytes());
            }
            self.reply(option, REP_INFO, &info)?;
        }
        self.reply(option, REP_ACK, &[])?;
        Ok(if option == OPT_GO { Next::Transmission } else { Next::Option })
    }

    /// Lists the metadata contexts that match the queries, or selects them.
    fn meta_context(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let Some(queries) = parse_queries(data).filter(|_| self.session.structured) else {
            let what = b"structured replies are off, or the request is truncated";
            return self.reply(option, REP_ERR_INVALID, what);
        };
        let lists = option == OPT_LIST_META_CONTEXT;
        let matches = |query: &Vec<u8>| query == ALLOCATION.as_bytes() || (lists && query == b"base:");
        let found = (lists && queries.is_empty()) || queries.iter().any(matches);
        if found {
            let id = if lists { 0 } else { ALLOCATION_ID };
            let mut answer = id.to_be_bytes().to_vec();
            answer.extend(ALLOCATION.as_bytes());
            self.reply(option, REP_META_CONTEXT, &answer)?;
        }
        if !lists {
            self.session.allocation = found;
        }
        self.reply(option, REP_ACK, &[])
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(20 + data.len());
        bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        bytes.extend(option.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)
    }
}

fn transmission_flags(export: &(impl Export + ?Sized), session: Session) -> u16 {
    let mut flags = TRANSMIT_HAS_FLAGS | TRANSMIT_FLUSH | TRANSMIT_FUA;
    flags |= TRANSMIT_TRIM | TRANSMIT_WRITE_ZEROES;
    if session.structured {
        flags |= TRANSMIT_DF;
    }
    if export.is_shared() {
        flags |= TRANSMIT_MULTI_CONN;
    }
    if export.is_read_only() {
        flags |= TRANSMIT_READ_ONLY;
    }
    flags
}

/// Parses the kinds of information that an INFO or GO requests: name length, name, count, kinds.
fn parse_info(data: &[u8]) -> Option<Vec<u16>> {
    let mut rest = data;
    let name = read_u32(&mut rest).ok()? as usize;
    rest = rest.get(name..)?;
    let count = read_u16(&mut rest).ok()?;
    let kinds = (0..count).map(|_| read_u16(&mut rest).ok()).collect::<Option<Vec<u16>>>()?;
    rest.is_empty().then_some(kinds)
}

/// Parses the contexts that a META_CONTEXT option requests: name length, name, count, each with its length.
fn parse_queries(data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = data;
    let name = read_u32(&mut rest).ok()? as usize;
    rest = rest.get(name..)?;
    let count = read_u32(&mut rest).ok()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        let length = read_u32(&mut rest).ok()? as usize;
        queries.push(rest.get(..length)?.to_vec());
        rest = &rest[length..];
    }
    rest.is_empty().then_some(queries)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}
