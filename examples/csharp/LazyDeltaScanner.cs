// Lazy scans of Delta tables from C#, over libdelta_lazy.so (see delta_lazy.h). It compiles with mono and with .NET.
using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.IO;
using System.Runtime.InteropServices;
using System.Runtime.Serialization;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace LazyDelta
{
    public enum ScanStrategy { Auto, Reverse, Forward }

    public sealed class ScanOptions
    {
        /// <summary>A predicate as JSON: {"date": "2026-02-08"}, {"n": {">=": 3}}.</summary>
        public string PredicateJson { get; set; }
        public int? Limit { get; set; }
        public ScanStrategy Strategy { get; set; }
        /// <summary>How many files may wait for the loop before the scan waits for it.</summary>
        public int Ahead { get; set; } = 64;
    }

    public sealed class DeltaFile
    {
        public DeltaFile(string path, long size, IDictionary<string, string> partitionValues, DateTime modificationTime)
        {
            Path = path;
            Size = size;
            PartitionValues = partitionValues;
            ModificationTime = modificationTime;
        }

        public string Path { get; }
        public long Size { get; }
        public IDictionary<string, string> PartitionValues { get; }
        public DateTime ModificationTime { get; }
    }

    public sealed class DeltaException : Exception
    {
        public DeltaException(int code, string message) : base(message) { Code = code; }
        public int Code { get; }
    }

    public interface ILazyDeltaScanner : IDisposable
    {
        /// <summary>Yields files as they are found; leaving the loop, or the token, stops the scan.</summary>
        IEnumerable<DeltaFile> ScanFiles(string tablePath, ScanOptions options, CancellationToken cancellation = default(CancellationToken));

        /// <summary>The same with a task for each file; the next file waits for it.</summary>
        Task ScanFilesAsync(string tablePath, ScanOptions options, Func<DeltaFile, Task> onFile, CancellationToken cancellation = default(CancellationToken));
    }

    public sealed class LazyDeltaScanner : ILazyDeltaScanner
    {
        private const int Cancelled = -6;
        private readonly CancellationTokenSource disposed = new CancellationTokenSource();

        public static string LibraryVersion { get { return Text(Native.delta_version()); } }

        public IEnumerable<DeltaFile> ScanFiles(string tablePath, ScanOptions options, CancellationToken cancellation = default(CancellationToken))
        {
            if (tablePath == null) throw new ArgumentNullException("tablePath");
            return Files(tablePath, options ?? new ScanOptions(), cancellation);
        }

        public async Task ScanFilesAsync(string tablePath, ScanOptions options, Func<DeltaFile, Task> onFile, CancellationToken cancellation = default(CancellationToken))
        {
            if (onFile == null) throw new ArgumentNullException("onFile");
            var files = ScanFiles(tablePath, options, cancellation).GetEnumerator();
            try
            {
                // The scan blocks while it waits for storage, so no thread of the caller's waits with it.
                while (await Task.Run(() => files.MoveNext()).ConfigureAwait(false))
                    await onFile(files.Current).ConfigureAwait(false);
            }
            finally
            {
                files.Dispose();
            }
        }

        public void Dispose() { disposed.Cancel(); }

        private IEnumerable<DeltaFile> Files(string tablePath, ScanOptions options, CancellationToken cancellation)
        {
            var scanId = Guid.NewGuid().ToString("N");
            using (var found = new BlockingCollection<DeltaFile>(Math.Max(1, options.Ahead)))
            using (var over = new CancellationTokenSource())
            using (var stopped = CancellationTokenSource.CreateLinkedTokenSource(cancellation, disposed.Token, over.Token))
            using (stopped.Token.Register(() => Native.delta_scan_cancel(Utf8(scanId))))
            {
                var scan = Task.Factory.StartNew(
                    () => Scan(tablePath, options, scanId, found, stopped.Token), CancellationToken.None,
                    TaskCreationOptions.LongRunning, TaskScheduler.Default);
                try
                {
                    foreach (var file in found.GetConsumingEnumerable(stopped.Token)) yield return file;
                    scan.GetAwaiter().GetResult();
                }
                finally
                {
                    over.Cancel();
                    // Its errors were thrown above, or come of being stopped.
                    Task.WhenAny(scan).GetAwaiter().GetResult();
                }
            }
        }

        private static void Scan(string tablePath, ScanOptions options, string scanId, BlockingCollection<DeltaFile> found, CancellationToken stopped)
        {
            Exception failure = null;
            // In a variable of its own: the collector must not take it while C still calls it.
            Native.OnFile take = (json, data) =>
            {
                try
                {
                    found.Add(Parsed(json), stopped);
                    return 1;
                }
                catch (Exception error) // none may cross C
                {
                    failure = error;
                    return 0;
                }
            };
            try
            {
                var code = Native.delta_scan_lazy_ex(Utf8(tablePath), Utf8(Json(options, scanId)), take, IntPtr.Zero);
                if (code != 0 && !(code == Cancelled && stopped.IsCancellationRequested))
                    throw new DeltaException(code, Text(Native.delta_last_error()));
                if (failure != null && !(failure is OperationCanceledException)) throw failure;
            }
            finally
            {
                GC.KeepAlive(take);
                found.CompleteAdding();
            }
            stopped.ThrowIfCancellationRequested();
        }

        private static string Json(ScanOptions options, string scanId)
        {
            var json = new StringBuilder("{\"scan_id\": \"" + scanId + "\", \"strategy\": \"" + options.Strategy.ToString().ToLowerInvariant() + "\"");
            if (options.Limit.HasValue) json.Append(", \"limit\": " + options.Limit.Value);
            if (!string.IsNullOrEmpty(options.PredicateJson)) json.Append(", \"where\": " + options.PredicateJson);
            return json.Append("}").ToString();
        }

        [DataContract]
        private sealed class FileJson
        {
            [DataMember(Name = "path")] public string Path = null;
            [DataMember(Name = "size")] public long Size = 0;
            [DataMember(Name = "modification_time")] public long ModificationTime = 0;
            [DataMember(Name = "partition_values")] public Dictionary<string, string> PartitionValues = null;
        }

        private static readonly DataContractJsonSerializer FileReader = new DataContractJsonSerializer(
            typeof(FileJson), new DataContractJsonSerializerSettings { UseSimpleDictionaryFormat = true });

        private static DeltaFile Parsed(IntPtr json)
        {
            using (var text = new MemoryStream(Bytes(json)))
            {
                var file = (FileJson)FileReader.ReadObject(text);
                var written = new DateTime(1970, 1, 1, 0, 0, 0, DateTimeKind.Utc).AddMilliseconds(file.ModificationTime);
                return new DeltaFile(file.Path, file.Size, file.PartitionValues, written);
            }
        }

        private static byte[] Utf8(string text) { return Encoding.UTF8.GetBytes(text + "\0"); }

        private static string Text(IntPtr pointer) { return Encoding.UTF8.GetString(Bytes(pointer)); }

        private static byte[] Bytes(IntPtr pointer)
        {
            var length = 0;
            while (Marshal.ReadByte(pointer, length) != 0) length += 1;
            var bytes = new byte[length];
            Marshal.Copy(pointer, bytes, 0, length);
            return bytes;
        }

        private static class Native
        {
            private const string Library = "delta_lazy"; // libdelta_lazy.so, by LD_LIBRARY_PATH or beside the program

            // C's bool is a byte.
            [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
            internal delegate byte OnFile(IntPtr fileJson, IntPtr userData);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern int delta_scan_lazy_ex(byte[] tablePath, byte[] optionsJson, OnFile callback, IntPtr userData);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern int delta_scan_cancel(byte[] scanId);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern IntPtr delta_last_error();

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern IntPtr delta_version();
        }
    }
}
