//! A file system of one file: `hello DIR`. It can be read with `cat DIR/hello` until `umount DIR`.

use std::{env, io, path::PathBuf, sync::Arc, time::Duration};

use flashkit_fuse_protocol::{
    Access, Connection, Errno, Handler, InitRequest, MountArguments, MountFlags, Problem, Request,
    RequestLimits, Response, Session,
    abi::{self, ROOT_NODE, opcode},
    dirent_bytes, put_dirent,
};

const HELLO_NODE: u64 = 2;
const CONTENT: &[u8] = b"Hello, world!\n";
/// The kernel may cache names and attributes for long, because nothing changes.
const VALID: Duration = Duration::from_secs(3600);

struct Hello;

fn attr(node: u64) -> Result<abi::Attr, Errno> {
    let (mode, links, size) = match node {
        ROOT_NODE => (0o040_555, 2, 0),
        HELLO_NODE => (0o100_444, 1, CONTENT.len() as u64),
        _ => return Err(Errno::NOENT),
    };
    Ok(abi::Attr { ino: node, size, mode, links, block_bytes: 4096, ..Default::default() })
}

impl Handler for Hello {
    fn init_flags(&self, _: &InitRequest) -> u64 {
        abi::init_flags::ASYNC_READ | abi::init_flags::PARALLEL_DIROPS
    }

    fn handle(&self, request: &mut Request<'_>, response: &mut Response) -> Result<(), Errno> {
        let node = request.header.node;
        let output = &mut response.output;
        match request.header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => response.suppress(),
            opcode::LOOKUP => {
                if (node, request.arguments.name()?) != (ROOT_NODE, b"hello") {
                    return Err(Errno::NOENT);
                }
                output.put(&abi::EntryOut {
                    node: HELLO_NODE,
                    name_valid_s: VALID.as_secs(),
                    attr_valid_s: VALID.as_secs(),
                    attr: attr(HELLO_NODE)?,
                    ..Default::default()
                });
            }
            opcode::GETATTR => {
                let attr_valid_s = VALID.as_secs();
                output.put(&abi::AttrOut { attr_valid_s, attr: attr(node)?, ..Default::default() });
            }
            opcode::OPEN | opcode::OPENDIR => output.put(&abi::OpenOut::default()),
            opcode::READ => {
                let abi::ReadIn { offset, size, .. } = request.arguments.take()?;
                let rest = CONTENT.get(offset as usize..).unwrap_or_default();
                output.extend(&rest[..rest.len().min(size as usize)]);
            }
            opcode::READDIR => {
                let abi::ReadIn { offset, size, .. } = request.arguments.take()?;
                let entries = [(ROOT_NODE, 4, &b"."[..]), (ROOT_NODE, 4, b".."), (HELLO_NODE, 8, b"hello")];
                for (next, (node, kind, name)) in (1..).zip(entries).skip(offset as usize) {
                    if output.bytes().len() + dirent_bytes(name) <= size as usize {
                        put_dirent(output, node, next, kind, name);
                    }
                }
            }
            opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => {}
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn report(&self, problem: Problem) {
        eprintln!("hello: {problem:?}");
    }
}

fn main() -> io::Result<()> {
    let dir = env::args().nth(1).map(PathBuf::from).ok_or_else(|| io::Error::other("usage: hello DIR"))?;
    let limits = RequestLimits::default();
    let arguments = MountArguments {
        source: "hello",
        subtype: "hello",
        flags: MountFlags::RDONLY,
        access: Access::Owner,
        max_read_bytes: limits.read_bytes,
    };
    let (connection, _) = Connection::mount(&dir, &arguments)?;
    Session::new(Arc::new(connection), limits, Hello).run(2)
}
