// List the files of a Delta table as they are found: mono scan.exe MODE TABLE [PREDICATE-JSON] [FILES]
// MODE is sync, async, cancel (the token is cancelled after FILES files), threads (four scans at once), vectors (with
// the rows that are deleted in each file) or metrics. Compiled for .NET, it has stream and stream-cancel as well, which
// are an IAsyncEnumerable that the loop leaves, or whose token is cancelled, after FILES files.
using System;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using LazyDelta;

public static class Program
{
    public static int Main(string[] arguments)
    {
        if (arguments.Length < 2)
        {
            Console.Error.WriteLine("usage: scan.exe sync|async|cancel|threads|vectors|metrics TABLE [PREDICATE-JSON] [FILES]");
            return 2;
        }
        string mode = arguments[0], table = arguments[1];
        var files = arguments.Length > 3 ? int.Parse(arguments[3]) : int.MaxValue;
        var options = new ScanOptions { PredicateJson = arguments.Length > 2 ? arguments[2] : null, Ahead = 1 };
        try
        {
            using (var scanner = new LazyDeltaScanner())
            using (var cancellation = new CancellationTokenSource())
            {
                var seen = 0;
                switch (mode)
                {
                    case "sync":
                        foreach (var file in scanner.ScanFiles(table, options))
                        {
                            Print(file);
                            if (++seen == files) break; // which stops the scan
                        }
                        break;
                    case "async":
                        scanner.ScanFilesAsync(table, options, async file =>
                        {
                            await Task.Yield();
                            Print(file);
                        }).GetAwaiter().GetResult();
                        break;
                    case "cancel":
                        foreach (var file in scanner.ScanFiles(table, options, cancellation.Token))
                        {
                            Print(file);
                            if (++seen == files) cancellation.Cancel();
                        }
                        break;
                    case "threads":
                        var counts = Enumerable.Range(0, 4)
                            .Select(_ => Task.Run(() => scanner.ScanFiles(table, options).Count())).ToArray();
                        Console.WriteLine(string.Join(" ", counts.Select(each => each.Result)));
                        break;
                    case "vectors":
                        options.HandlesDeletionVectors = true;
                        options.StatsColumns = new[] { "id" };
                        foreach (var file in scanner.ScanFiles(table, options)) PrintVector(table, file);
                        break;
                    case "metrics":
                        options.ScanId = "counted";
                        var count = scanner.ScanFiles(table, options).Count();
                        var metrics = LazyDeltaScanner.Metrics("counted");
                        Console.WriteLine(string.Join(" ", count, metrics["delta.lazy.files_emitted"], metrics["delta.lazy.peak_memory_bytes"], metrics["delta.lazy.strategy"]));
                        LazyDeltaScanner.Metrics("nobody");
                        break;
#if NETCOREAPP
                    case "stream":
                    case "stream-cancel":
                        Stream(scanner, table, options, files, mode == "stream" ? null : cancellation).GetAwaiter().GetResult();
                        break;
#endif
                    default:
                        throw new ArgumentException("no such mode: " + mode);
                }
            }
        }
        catch (OperationCanceledException)
        {
            Console.Error.WriteLine("cancelled");
            return 3;
        }
        catch (DeltaException error)
        {
            Console.Error.WriteLine("error " + error.Code + ": " + error.Message);
            return 1;
        }
        return 0;
    }

#if NETCOREAPP
    private static async Task Stream(ILazyDeltaScanner scanner, string table, ScanOptions options, int files, CancellationTokenSource cancellation)
    {
        var seen = 0;
        var found = scanner.StreamFilesAsync(table, options);
        await foreach (var file in found.WithCancellation(cancellation == null ? CancellationToken.None : cancellation.Token))
        {
            Print(file);
            if (++seen < files) continue;
            if (cancellation == null) break; // which stops the scan
            cancellation.Cancel();
        }
    }
#endif

    private static void PrintVector(string table, DeltaFile file)
    {
        var vector = file.DeletionVector;
        var described = vector == null ? "" : string.Join(" ", vector.StorageType, vector.PathOrInlineDv, vector.Offset ?? -1, vector.SizeInBytes, vector.Cardinality);
        var id = file.Statistics["id"];
        Console.WriteLine(string.Join("\t", file.Path, file.NumRecords ?? -1, file.Version, id.Min ?? "none", id.Max ?? "none", id.NullCount ?? -1,
            described, string.Join(" ", LazyDeltaScanner.DeletedRows(table, file))));
    }

    private static void Print(DeltaFile file)
    {
        var values = file.PartitionValues.OrderBy(each => each.Key, StringComparer.Ordinal).Select(each => each.Key + "=" + each.Value);
        Console.WriteLine(file.Path + "\t" + file.Size + "\t" + string.Join(",", values) + "\t" + file.ModificationTime.ToString("o"));
    }
}
