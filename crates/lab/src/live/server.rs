//! The HTTP server.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use http_body_util::{Either, Full, channel::Channel};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderName},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{
    folder::{Folder, State},
    request,
};
use crate::stop::Stop;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
/// Duration between two looks into the folder, and at the stop request.
const LOOK: Duration = Duration::from_millis(200);
/// Duration after which a silent stream gets a comment, so that the end of a client is noticed.
const SILENCE: Duration = Duration::from_secs(15);
/// Maximum duration of the header of a request.
const HEADER: Duration = Duration::from_secs(10);
/// Maximum length of the header of a request, in bytes.
const HEADER_BYTES: usize = 16 << 10;
/// Maximum number of connections; others are closed at once.
const CONNECTIONS: usize = 64;

/// Headers of every answer: no other site embeds or reads it, and a page loads nothing from elsewhere.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'",
    ),
];

/// A bound server of one study.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    study: PathBuf,
}

/// Sources of the answers.
struct Site {
    study: PathBuf,
    state: watch::Receiver<State>,
}

type Body = Either<Full<Bytes>, Channel<Bytes>>;

impl Server {
    /// Binds a server of the study in a directory, which must exist.
    ///
    /// # Errors
    /// The directory does not exist, or the address is in use or not of this machine.
    pub fn bind(address: SocketAddr, study: &Path) -> io::Result<Server> {
        let about =
            |what: String| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
        let study = study.canonicalize().map_err(about(study.display().to_string()))?;
        let listener = TcpListener::bind(address).map_err(about(address.to_string()))?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener, study })
    }

    /// Returns the bound address, with the port that the system has chosen for port 0.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests until a stop is requested.
    ///
    /// # Errors
    /// Those of the system.
    pub fn run(self, stop: &Stop) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Server { listener, study } = self;
        let mut folder = Folder::new(&study);
        let (tell, state) = watch::channel(folder.look(&State::default()).unwrap_or_default());
        let site = Arc::new(Site { study: study.clone(), state });
        let over = Stop::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.is_wished() {
                    thread::sleep(LOOK);
                    let new = folder.look(&tell.borrow());
                    if let Some(new) = new {
                        tell.send_replace(new);
                    }
                }
            });
            let done = runtime.block_on(accept(listener, site, stop));
            over.wish();
            done
        })
    }
}

async fn accept(listener: TcpListener, site: Arc<Site>, stop: &Stop) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    while !stop.is_wished() {
        let stream = match timeout(LOOK, listener.accept()).await {
            Ok(Ok((stream, _))) => stream,
            // A client that is gone already, or too many open files.
            Ok(Err(_)) => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(_) => continue,
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let site = site.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&site, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER).max_buf_size(HEADER_BYTES);
            // A client that breaks the protocol or the connection harms only itself.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
    Ok(())
}

fn answer(site: &Site, request: &Request<Incoming>) -> Response<Body> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let is_own = hosts.next().is_none()
        && host.is_some_and(request::is_own_host)
        && request.uri().authority().is_none_or(|it| request::is_own_host(it.as_str()));
    if !is_own {
        let why = "The host of the request is neither an IP address nor localhost.\n";
        return whole(StatusCode::MISDIRECTED_REQUEST, "text/plain", why);
    }
    if request.method() != Method::GET {
        let mut refused = whole(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "Only GET is allowed.\n");
        refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET"));
        return refused;
    }
    match request.uri().path() {
        "/" => whole(StatusCode::OK, "text/html; charset=utf-8", PAGE),
        "/page.js" => whole(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT),
        "/events" => response(StatusCode::OK, "text/event-stream", Either::Right(events(site.state.clone()))),
        path => match request::file(&site.study, path) {
            Some((bytes, kind)) => whole(StatusCode::OK, kind, bytes),
            None => whole(StatusCode::NOT_FOUND, "text/plain", "There is no such page.\n"),
        },
    }
}

fn whole(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    response(status, kind, Either::Left(Full::new(content.into())))
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    for (name, value) in HEADERS {
        response = response.header(name, value);
    }
    response.body(body).expect("all headers are constants")
}

/// Returns a stream of events: first all cells, then each change.
fn events(mut state: watch::Receiver<State>) -> Channel<Bytes> {
    let (mut stream, body) = Channel::new(1);
    tokio::spawn(async move {
        let mut sent = 0;
        loop {
            let event = {
                let state = state.borrow_and_update();
                let event = state.event(sent);
                sent = state.version;
                event
            };
            if stream.send_data(Bytes::from(event)).await.is_err() {
                return;
            }
            loop {
                match timeout(SILENCE, state.changed()).await {
                    Ok(Ok(())) => break,
                    // The server ends.
                    Ok(Err(_)) => return,
                    Err(_) if stream.send_data(Bytes::from_static(b":\n\n")).await.is_err() => return,
                    Err(_) => {}
                }
            }
        }
    });
    body
}
