//! Answering the requests of one mount.

mod rings;

use std::{
    io,
    ops::Range,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use rustix::io::Errno;

use crate::{
    abi::{self, InHeader, init_flags, opcode},
    connection::{Connection, Reply},
    interrupts::{Interrupts, Watched},
    message::{Arguments, Output},
    negotiation::{InitRequest, Negotiated, RequestLimits},
    panics::contain,
    pool::{self, Admission, Parked, Pool},
    ready_threads::ReadyThreads,
    session::rings::Reserve,
    splice_pipe::SplicePipe,
};

/// Space for a request's header and arguments, in bytes.
const HEAD_BYTES: usize = 64 << 10;

/// A file system that answers requests, on several threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Returns the [init flags](abi::init_flags) to negotiate. Flags that the kernel does not offer have no
    /// effect.
    fn init_flags(&self, request: &InitRequest) -> u64;

    /// Handles a request. The payload of the answer goes to [`Response::output`].
    ///
    /// # Errors
    /// The errno that the request is answered with; ENOSYS for requests that are not supported.
    fn handle(&self, request: &mut Request<'_>, response: &mut Response) -> Result<(), Errno>;

    /// Called for a problem that no answer describes.
    fn report(&self, problem: Problem);
}

/// A problem of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// [`Handler::handle`] panicked with this message. The request was answered with EIO.
    Panic(String),
    /// The kernel is older than version 7.[23](abi::MINOR_LEAST) of the protocol. It was refused.
    KernelTooOld {
        /// Minor version of the kernel's protocol.
        minor: u32,
    },
    /// [`Transport::IoUring`] cannot be used for this reason. The session goes on with the device.
    NoIoUring(String),
}

/// Transport of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// read(2) and write(2) on `/dev/fuse`.
    #[default]
    Device,
    /// io_uring if the kernel offers it (Linux 6.14, parameter `enable_uring` of the module `fuse`), and the device
    /// otherwise. FORGET, interrupts and notifications always go through the device.
    IoUring,
}

/// A request of the kernel.
pub struct Request<'a> {
    /// Its header.
    pub header: &'a InHeader,
    /// Its arguments that are not parsed yet.
    pub arguments: Arguments<'a>,
    /// The negotiated version and flags.
    pub negotiated: Negotiated,
    interrupts: &'a Interrupts,
}

impl<'a> Request<'a> {
    /// Watches for an interrupt of this request: a signal for the process that waits for the answer.
    #[must_use]
    pub fn watch(&self) -> Watched<'a> {
        self.interrupts.watch(self.header.unique)
    }
}

/// The answer to a request.
pub struct Response {
    /// The payload.
    pub output: Output,
    /// It is taken out by code that answers in another way than with `output`.
    reply: Option<Reply>,
    splice_pipe: SplicePipe,
}

impl Response {
    /// Takes the reply out, for code that answers itself or later. It can be taken once.
    ///
    /// # Panics
    /// If it has been taken.
    #[must_use]
    pub fn defer(&mut self) -> Reply {
        self.reply.take().expect("the request has no answer yet")
    }

    /// Marks the request as one that has no answer (FORGET).
    pub fn suppress(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply.none();
        }
    }

    /// Answers with ranges of a file, which the kernel takes from its page cache. Returns false if that is not
    /// possible; then the request is still unanswered.
    pub fn splice(&mut self, file: BorrowedFd<'_>, ranges: &[Range<u64>]) -> bool {
        let Some(reply) = &mut self.reply else { return false };
        let spliced = reply.splice(&mut self.splice_pipe, file, ranges);
        if spliced {
            self.reply = None;
        }
        spliced
    }
}

/// A mount whose requests are answered by a [`Handler`].
pub struct Session<H> {
    connection: Arc<Connection>,
    handler: H,
    limits: RequestLimits,
    transport: Transport,
    /// The entries of io_uring, from the init request to its answer.
    reserve: Mutex<Option<Reserve>>,
    interrupts: Interrupts,
    /// Set once the kernel has sent its init request.
    negotiated: OnceLock<Negotiated>,
}

impl<H: Handler> Session<H> {
    /// Number of threads without which no requests are answered.
    pub const THREADS_MIN: usize = pool::THREADS_MIN;

    /// Creates a session that does not answer requests yet.
    pub fn new(connection: Arc<Connection>, limits: RequestLimits, handler: H) -> Session<H> {
        Session {
            connection,
            handler,
            limits,
            transport: Transport::default(),
            reserve: Mutex::default(),
            interrupts: Interrupts::default(),
            negotiated: OnceLock::new(),
        }
    }

    /// Selects the transport. The usual one is the device.
    #[must_use]
    pub fn over(self, transport: Transport) -> Session<H> {
        Session { transport, ..self }
    }

    /// Returns the file system.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Answers requests on about `threads` threads until the file system is unmounted.
    ///
    /// # Errors
    /// The connection to the kernel failed, or the host refuses the [threads](Self::THREADS_MIN) that are needed.
    pub fn run(self, threads: usize) -> io::Result<()> {
        self.run_on(ReadyThreads::default(), threads)
    }

    /// Answers requests like [`run`](Self::run), on threads that were started before the mount and then on new ones. With
    /// [`THREADS_MIN`](Self::THREADS_MIN) of them it needs no further thread of the host.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_on(self, ready: ReadyThreads, threads: usize) -> io::Result<()> {
        let session = Arc::new(self);
        Pool::run(threads, ready, move |pool| session.serve(pool))
    }

    /// Answers requests of the device on one thread until the file system is unmounted.
    fn serve(self: &Arc<Self>, pool: &Arc<Pool>) -> io::Result<()> {
        let message_bytes = self.limits.payload_bytes as usize + HEAD_BYTES;
        let mut buffer = vec![0; message_bytes];
        let mut response = self.response(message_bytes);
        while let Some((header, arguments)) = self.connection.receive(&mut buffer)? {
            pool.mark_busy();
            let is_init = header.opcode == opcode::INIT;
            if is_init {
                self.prepare_rings(pool, arguments);
            }
            let admission = pool.admit(&header, arguments);
            if admission != Admission::Park {
                self.answer(&header, arguments, &mut response);
            }
            if admission == Admission::HandleChange {
                while let Some(Parked { header, arguments }) = pool.next_parked() {
                    self.answer(&header, &arguments, &mut response);
                }
            }
            if is_init {
                self.start_rings();
            }
            pool.mark_idle();
        }
        Ok(())
    }

    /// Creates the buffers of a thread.
    fn response(&self, output_bytes: usize) -> Response {
        Response {
            output: Output::new(output_bytes),
            reply: None,
            splice_pipe: SplicePipe::new(self.limits.read_bytes as usize),
        }
    }

    /// Answers a request of the device.
    fn answer(&self, header: &InHeader, arguments: &[u8], response: &mut Response) {
        response.output.clear();
        let reply = Reply::new(self.connection.clone(), header.unique);
        if let (outcome, Some(reply)) = self.handle(header, arguments, response, reply) {
            reply.send(outcome.map(|()| response.output.bytes()));
        }
    }

    /// Handles a request of any transport. Returns the outcome, whose payload is in the response, and the reply unless
    /// the handler has taken it.
    fn handle(
        &self,
        header: &InHeader,
        arguments: &[u8],
        response: &mut Response,
        reply: Reply,
    ) -> (Result<(), Errno>, Option<Reply>) {
        response.reply = Some(reply);
        let mut request = Request {
            header,
            arguments: Arguments(arguments),
            negotiated: self.negotiated.get().copied().unwrap_or_default(),
            interrupts: &self.interrupts,
        };
        let handled = contain(|| match header.opcode {
            opcode::INIT => self.init(&mut request.arguments, &mut response.output),
            opcode::INTERRUPT => {
                response.suppress();
                self.interrupts.interrupt(request.arguments.take::<abi::InterruptIn>()?.unique);
                Ok(())
            }
            _ => self.handler.handle(&mut request, response),
        });
        let outcome = handled.unwrap_or_else(|message| {
            self.handler.report(Problem::Panic(message));
            Err(Errno::IO)
        });
        (outcome, response.reply.take())
    }

    fn init(&self, arguments: &mut Arguments<'_>, output: &mut Output) -> Result<(), Errno> {
        let minor = Arguments(arguments.0).take::<abi::InitIn>()?.minor;
        let request = InitRequest::parse(arguments).inspect_err(|errno| {
            if *errno == Errno::PROTO {
                self.handler.report(Problem::KernelTooOld { minor });
            }
        })?;
        let has_rings = self.reserve.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let own_flags = if has_rings { init_flags::INIT_EXT | init_flags::OVER_IO_URING } else { 0 };
        let wanted = || request.negotiate(self.handler.init_flags(&request) | own_flags);
        let negotiated = self.negotiated.get_or_init(wanted);
        output.put(&request.answer(negotiated, &self.limits));
        Ok(())
    }
}
