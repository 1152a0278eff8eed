// Lazy scans of Delta tables from C#, over libdelta_lazy.so (see delta_lazy.h). It compiles with mono and with .NET.
using System;
using System.Collections;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Runtime.InteropServices;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using System.Xml;

namespace LazyDelta
{
    public enum ScanStrategy { Auto, Reverse, Forward }

    public sealed class ScanOptions
    {
        /// <summary>A predicate as JSON: {"date": "2026-02-08"}, {"n": {">=": 3}}.</summary>
        public string PredicateJson { get; set; }
        /// <summary>A predicate as SQL, in place of the JSON.</summary>
        public string Where { get; set; }
        public int? Limit { get; set; }
        /// <summary>Stop when the files found hold this many matching rows for certain.</summary>
        public long? RowLimit { get; set; }
        public ScanStrategy Strategy { get; set; }
        public long? Version { get; set; }
        /// <summary>Scan the version of this time, in place of a number.</summary>
        public DateTimeOffset? Timestamp { get; set; }
        /// <summary>Columns whose minimum, maximum and null count files shall have; an empty array: the number of rows alone.</summary>
        public string[] StatsColumns { get; set; }
        /// <summary>Credentials and settings of the store, with the keys that deltalake takes.</summary>
        public IDictionary<string, string> StorageOptions { get; set; }
        /// <summary>Folders of other accounts that the log may lead to, with storage options of their own.</summary>
        public IDictionary<string, IDictionary<string, string>> ExternalLocations { get; set; }
        /// <summary>Options of lazydelta, such as delta.commit.parallelism.</summary>
        public IDictionary<string, string> Options { get; set; }
        /// <summary>Says that the caller leaves out deleted rows, which <see cref="LazyDeltaScanner.DeletedRows"/> names.
        /// Without it a file with a deletion vector ends the scan with an exception.</summary>
        public bool HandlesDeletionVectors { get; set; }
        /// <summary>How many files may wait for the loop before the scan waits for it.</summary>
        public int Ahead { get; set; } = 64;
        /// <summary>A name for <see cref="LazyDeltaScanner.Metrics"/>; one of its own for each scan.</summary>
        public string ScanId { get; set; }
    }

    /// <summary>Which rows of a file are deleted, as the log describes it.</summary>
    public sealed class DeletionVector
    {
        internal DeletionVector(string storageType, string pathOrInlineDv, int? offset, int sizeInBytes, long cardinality)
        {
            StorageType = storageType;
            PathOrInlineDv = pathOrInlineDv;
            Offset = offset;
            SizeInBytes = sizeInBytes;
            Cardinality = cardinality;
        }

        /// <summary>"u": a file of the table, "p": an absolute path, "i": inline.</summary>
        public string StorageType { get; }
        public string PathOrInlineDv { get; }
        public int? Offset { get; }
        public int SizeInBytes { get; }
        /// <summary>How many rows are deleted.</summary>
        public long Cardinality { get; }
    }

    /// <summary>Minimum and maximum as JSON has them: text, long, double, bool or null.</summary>
    public sealed class ColumnStatistics
    {
        public object Min { get; internal set; }
        public object Max { get; internal set; }
        public long? NullCount { get; internal set; }
    }

    public sealed class DeltaFile
    {
        internal DeltaFile(IDictionary<string, object> json)
        {
            Path = (string)json["path"];
            Size = (long)json["size"];
            ModificationTime = new DateTime(1970, 1, 1, 0, 0, 0, DateTimeKind.Utc).AddMilliseconds((long)json["modification_time"]);
            NumRecords = (long?)json["num_records"];
            Version = (long?)json["version"];
            Tier = (int)(long)json["tier"];
            PartitionValues = ((IDictionary<string, object>)json["partition_values"]).ToDictionary(each => each.Key, each => (string)each.Value);
            var vector = (IDictionary<string, object>)json["deletion_vector"];
            if (vector != null)
                DeletionVector = new DeletionVector(
                    (string)vector["storageType"], (string)vector["pathOrInlineDv"], (int?)(long?)vector["offset"],
                    (int)(long)vector["sizeInBytes"], (long)vector["cardinality"]);
            Statistics = new Dictionary<string, ColumnStatistics>();
            foreach (var each in json)
            {
                if (each.Key.StartsWith("min.", StringComparison.Ordinal)) Of(each.Key.Substring(4)).Min = each.Value;
                if (each.Key.StartsWith("max.", StringComparison.Ordinal)) Of(each.Key.Substring(4)).Max = each.Value;
                if (each.Key.StartsWith("null_count.", StringComparison.Ordinal)) Of(each.Key.Substring(11)).NullCount = (long?)each.Value;
            }
        }

        /// <summary>As logged: percent-encoded, relative to the table's root or absolute.</summary>
        public string Path { get; }
        public long Size { get; }
        public DateTime ModificationTime { get; }
        public IDictionary<string, string> PartitionValues { get; }
        /// <summary>With the deleted ones; null where it was not asked for or is not known.</summary>
        public long? NumRecords { get; }
        /// <summary>The version that added the file; null for files of the checkpoint.</summary>
        public long? Version { get; }
        public int Tier { get; }
        /// <summary>Null where all rows are live.</summary>
        public DeletionVector DeletionVector { get; }
        public IDictionary<string, ColumnStatistics> Statistics { get; }

        private ColumnStatistics Of(string column)
        {
            ColumnStatistics found;
            if (!Statistics.TryGetValue(column, out found)) Statistics[column] = found = new ColumnStatistics();
            return found;
        }
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
            var scanId = options.ScanId ?? Guid.NewGuid().ToString("N");
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
                    found.Add(new DeltaFile(Json.Read(Bytes(json))), stopped);
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
                var code = Native.delta_scan_lazy_ex(Utf8(tablePath), Utf8(OptionsJson(options, scanId)), take, IntPtr.Zero);
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

        /// <summary>The delta.lazy.* metrics of the newest scan of this id, which may run still.</summary>
        public static IDictionary<string, object> Metrics(string scanId)
        {
            var name = Utf8(scanId);
            var buffer = new byte[8192];
            var length = Native.delta_scan_metrics(name, buffer, (UIntPtr)buffer.Length);
            while (length >= buffer.Length)
            {
                buffer = new byte[2 * length];
                length = Native.delta_scan_metrics(name, buffer, (UIntPtr)buffer.Length);
            }
            if (length < 0) throw new DeltaException(length, Text(Native.delta_last_error()));
            Array.Resize(ref buffer, length);
            return Json.Read(buffer);
        }

        /// <summary>The positions of the deleted rows of a file, ascending from 0.</summary>
        public static IList<long> DeletedRows(string tablePath, DeltaFile file, ScanOptions options = null)
        {
            var rows = new List<long>();
            var vector = file.DeletionVector;
            if (vector == null) return rows;
            Native.OnRows take = (positions, count, data) =>
            {
                var piece = new long[(int)count];
                Marshal.Copy(positions, piece, 0, piece.Length);
                rows.AddRange(piece);
                return 1;
            };
            var texts = new[] { GCHandle.Alloc(Utf8(vector.StorageType), GCHandleType.Pinned), GCHandle.Alloc(Utf8(vector.PathOrInlineDv), GCHandleType.Pinned) };
            try
            {
                var given = new Native.Vector
                {
                    StorageType = texts[0].AddrOfPinnedObject(), PathOrInlineDv = texts[1].AddrOfPinnedObject(),
                    Offset = vector.Offset ?? -1, SizeInBytes = vector.SizeInBytes, Cardinality = vector.Cardinality,
                };
                var json = Json.Written(Place(options ?? new ScanOptions()));
                var code = Native.delta_deletion_vector_rows(Utf8(tablePath), Utf8(json), Utf8(file.Path), ref given, take, IntPtr.Zero);
                if (code != 0) throw new DeltaException(code, Text(Native.delta_last_error()));
            }
            finally
            {
                GC.KeepAlive(take);
                foreach (var each in texts) each.Free();
            }
            return rows;
        }

        /// <summary>Where a table is and how it is reached, as options of the library.</summary>
        private static Dictionary<string, object> Place(ScanOptions options)
        {
            return new Dictionary<string, object>
            {
                { "storage_options", options.StorageOptions },
                { "external_locations", options.ExternalLocations },
                { "options", options.Options },
            };
        }

        private static string OptionsJson(ScanOptions options, string scanId)
        {
            if (options.Version.HasValue && options.Timestamp.HasValue) throw new ArgumentException("a version or a timestamp, not both");
            if (options.Where != null && !string.IsNullOrEmpty(options.PredicateJson)) throw new ArgumentException("a predicate in SQL or in JSON, not both");
            var given = Place(options);
            given["scan_id"] = scanId;
            given["strategy"] = options.Strategy.ToString().ToLowerInvariant();
            given["limit"] = options.Limit;
            given["row_limit"] = options.RowLimit;
            given["version"] = options.Timestamp.HasValue ? (object)options.Timestamp.Value.ToString("o", CultureInfo.InvariantCulture) : options.Version;
            given["stats_columns"] = options.StatsColumns;
            given["handles_deletion_vectors"] = options.HandlesDeletionVectors;
            given["where"] = string.IsNullOrEmpty(options.PredicateJson) ? (object)options.Where : new Json(options.PredicateJson);
            return Json.Written(given);
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

            // size_t is as wide as a pointer.
            [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
            internal delegate byte OnRows(IntPtr rows, UIntPtr count, IntPtr userData);

            [StructLayout(LayoutKind.Sequential)]
            internal struct Vector
            {
                internal IntPtr StorageType;
                internal IntPtr PathOrInlineDv;
                internal long Offset;
                internal long SizeInBytes;
                internal long Cardinality;
            }

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern int delta_deletion_vector_rows(byte[] tablePath, byte[] optionsJson, byte[] path, ref Vector vector, OnRows callback, IntPtr userData);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern int delta_scan_lazy_ex(byte[] tablePath, byte[] optionsJson, OnFile callback, IntPtr userData);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern int delta_scan_cancel(byte[] scanId);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern int delta_scan_metrics(byte[] scanId, byte[] buffer, UIntPtr size);

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern IntPtr delta_last_error();

            [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
            internal static extern IntPtr delta_version();
        }
    }

    /// <summary>JSON with what every .NET has: objects are dictionaries, integers long.</summary>
    internal sealed class Json
    {
        private readonly string text;

        internal Json(string text) { this.text = text; }

        internal static IDictionary<string, object> Read(byte[] utf8)
        {
            var document = new XmlDocument { PreserveWhitespace = true };
            using (var reader = JsonReaderWriterFactory.CreateJsonReader(utf8, XmlDictionaryReaderQuotas.Max)) document.Load(reader);
            return (IDictionary<string, object>)Value(document.DocumentElement);
        }

        /// <summary>Entries that are null are left out.</summary>
        internal static string Written(object value)
        {
            if (value is Json) return ((Json)value).text;
            if (value is string) return Quoted((string)value);
            if (value is bool) return (bool)value ? "true" : "false";
            var table = value as IDictionary;
            if (table != null)
                return "{" + string.Join(", ", table.Keys.Cast<string>().Where(key => table[key] != null).Select(key => Quoted(key) + ": " + Written(table[key]))) + "}";
            var list = value as IEnumerable;
            if (list != null) return "[" + string.Join(", ", list.Cast<object>().Select(Written)) + "]";
            return Convert.ToString(value, CultureInfo.InvariantCulture);
        }

        private static string Quoted(string text)
        {
            var json = new StringBuilder("\"");
            foreach (var each in text)
            {
                if (each == '"' || each == '\\') json.Append('\\').Append(each);
                else if (each < ' ') json.Append("\\u" + ((int)each).ToString("x4"));
                else json.Append(each);
            }
            return json.Append('"').ToString();
        }

        // .NET reads JSON as XML: names that XML does not have stand in an attribute "item".
        private static object Value(XmlElement element)
        {
            var inside = element.ChildNodes.OfType<XmlElement>();
            var text = element.InnerText;
            switch (element.GetAttribute("type"))
            {
                case "object": return inside.ToDictionary(each => each.HasAttribute("item") ? each.GetAttribute("item") : each.LocalName, Value);
                case "array": return inside.Select(Value).ToArray();
                case "number":
                    long whole;
                    if (long.TryParse(text, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out whole)) return whole;
                    return double.Parse(text, CultureInfo.InvariantCulture);
                case "boolean": return text == "true";
                case "null": return null;
                default: return text;
            }
        }
    }
}
