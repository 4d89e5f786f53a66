//! A connection that fails if its client reads no byte for too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Wraps a connection.
#[derive(Debug)]
pub(crate) struct Stalling<S> {
    stream: S,
    most: Duration,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    pub fn new(stream: S, most: Duration) -> Self {
        Stalling { stream, most, stalled: None }
    }

    /// Returns the result of a write, or an error if writes are pending for too long.
    fn timed<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let most = self.most;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(most)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.timed(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.timed(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_that_no_client_reads_times_out() {
        let (mut client, stream) = duplex(4);
        let mut server = Stalling::new(stream, Duration::from_millis(50));
        server.write_all(b"abcd").await.unwrap();
        let error = server.write_all(b"efgh").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // A client that reads again gets further bytes.
        let mut read = [0; 4];
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"abcd");
        server.write_all(b"efgh").await.unwrap();
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"efgh");
    }

    #[tokio::test]
    async fn a_write_waits_for_a_client_that_reads_in_time() {
        let (mut client, stream) = duplex(4);
        let mut server = Stalling::new(stream, Duration::from_secs(60));
        let mut read = [0; 12];
        let (written, _) = tokio::join!(server.write_all(b"abcdefghijkl"), client.read_exact(&mut read));
        written.unwrap();
        assert_eq!(&read, b"abcdefghijkl");
        assert!(server.stalled.is_none());
    }
}
