// Files as an IAsyncEnumerable, for compilers of C# 8 and later. mono's compiler leaves this file out.
#if NETCOREAPP
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Channels;
using System.Threading.Tasks;

namespace LazyDelta
{
    public static class AsyncScanner
    {
        /// <summary>Yields files as they are found; leaving the loop, or the token, stops the scan. No thread of the caller's
        /// waits for storage. At most <see cref="ScanOptions.Ahead"/> files wait for the loop.</summary>
        public static IAsyncEnumerable<DeltaFile> StreamFilesAsync(
            this ILazyDeltaScanner scanner, string tablePath, ScanOptions options = null, CancellationToken cancellation = default)
        {
            if (scanner == null) throw new ArgumentNullException(nameof(scanner));
            if (tablePath == null) throw new ArgumentNullException(nameof(tablePath));
            return Files(scanner, tablePath, options ?? new ScanOptions(), cancellation);
        }

        private static async IAsyncEnumerable<DeltaFile> Files(
            ILazyDeltaScanner scanner, string tablePath, ScanOptions options, [EnumeratorCancellation] CancellationToken cancellation)
        {
            var found = Channel.CreateBounded<DeltaFile>(
                new BoundedChannelOptions(Math.Max(1, options.Ahead)) { SingleReader = true, SingleWriter = true });
            using var over = CancellationTokenSource.CreateLinkedTokenSource(cancellation);
            var scan = Scan(scanner, tablePath, options, found.Writer, over.Token);
            try
            {
                while (await found.Reader.WaitToReadAsync(cancellation).ConfigureAwait(false))
                    while (found.Reader.TryRead(out var file))
                    {
                        cancellation.ThrowIfCancellationRequested();
                        yield return file;
                    }
            }
            finally
            {
                over.Cancel();
                await scan.ConfigureAwait(false); // which never throws: its error has gone through the channel
            }
        }

        private static async Task Scan(
            ILazyDeltaScanner scanner, string tablePath, ScanOptions options, ChannelWriter<DeltaFile> found, CancellationToken over)
        {
            Exception failure = null;
            try
            {
                await scanner.ScanFilesAsync(tablePath, options, file => found.WriteAsync(file, over).AsTask(), over).ConfigureAwait(false);
            }
            catch (Exception error)
            {
                failure = error;
            }
            found.TryComplete(failure);
        }
    }
}
#endif
