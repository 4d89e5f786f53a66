//! Connections: accepted within limits, served, and ended when the server stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::stall::Stalling;

/// Most bytes of the head of a request.
const HEAD_BYTES: usize = 32 << 10;

/// Most headers of a request.
const HEADERS: usize = 64;

/// Pause after a connection could not be accepted, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(50);

/// Time that cancelled requests have to end.
const CANCELLED_TIME: Duration = Duration::from_secs(5);

/// Accepts connections until `stop` is true, then waits for the open requests. Requests that take
/// longer than the limit are cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    app: Arc<App>,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(app.limits.connections.min(Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    loop {
        // Connections that ended leave the set.
        while connections.try_join_next().is_some() {}
        tokio::select! {
            () = stopped(&mut stop) => break,
            (stream, place) = accept(&listener, &places) => {
                connections.spawn(connection(stream, router.clone(), Arc::clone(&app), stop.clone(), place));
            }
        }
    }
    drop(listener);
    app.stop();
    let all = async {
        while connections.join_next().await.is_some() {}
        app.idle().await;
    };
    if timeout(app.limits.drain_time, all).await.is_err() {
        tracing::warn!("open requests are cancelled, because the server stops");
        app.open.cancel();
        let all = async {
            while connections.join_next().await.is_some() {}
            app.idle().await;
        };
        if timeout(CANCELLED_TIME, all).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// Waits until the server is stopped, or its stopper is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Waits for a place and a connection.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    app: Arc<App>,
    mut stop: watch::Receiver<bool>,
    _place: Option<OwnedSemaphorePermit>,
) {
    // Events are small, and each is sent at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("no delay: {error}");
    }
    let stream = TokioIo::new(Stalling::new(stream, app.limits.write_time));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.head_time)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(stream, TowerToHyperService::new(router));
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stopped(&mut stop) => {
            // The response in progress is sent to its end.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}
