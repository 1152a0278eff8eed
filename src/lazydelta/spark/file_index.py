"""``DeltaFileIndex``: the files of a table, found while Spark plans a query.

Spark's interface ``FileIndex`` is implemented here in Python, through py4j. A relation over it is read by Spark's own
Parquet reader. Spark calls ``listFiles`` once for each scan of each plan, with the filters of that scan, so that one
DataFrame can be used any number of times.

- Spark does not apply partition filters to rows again. Python prunes to a superset, and the JVM applies Spark's own
  expressions to the partitions that are left.
- Files go to the JVM in bulk, as Arrow, one row per partition. Expressions of Catalyst turn these rows into Spark's
  objects there: a call per file or partition would take 10 ms.
- Rows deleted by a deletion vector are filtered by Spark. The vector of a file travels as the value of a hidden
  partition column.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as spark_types

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.log.checksum.writer import state_at
from lazydelta.log.file_batch import FileBatch
from lazydelta.predicates import Predicate, conjunction
from lazydelta.predicates.tree import believing_maxima
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.deletion_vectors import read_deletion_vector
from lazydelta.protocol.schema import Column
from lazydelta.protocol.values import from_text, partition_value, stored_value
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy, one_array, string_array, typed_array
from lazydelta.scan.request import ScanRequest
from lazydelta.sidecar.handle import Snapshot
from lazydelta.spark.catalyst import predicate_of
from lazydelta.stats.ranges import partition_texts

__all__ = ["DELETED_ROWS", "DeltaFileIndex", "SparkInternals", "TableFiles", "why_not"]

_SQL = "org.apache.spark.sql"
_INDEX = f"{_SQL}.execution.datasources.FileIndex"
DELETED_ROWS = "__lazydelta_deleted_rows"
"""The hidden partition column: positions of deleted rows as a roaring bitmap, null for files without a vector."""

# Constructors and methods that are used here, with their number of parameters. They are no public interface.
_CONSTRUCTORS = {
    f"{_SQL}.execution.datasources.HadoopFsRelation": 7,
    f"{_SQL}.execution.datasources.PartitionDirectory": 2,
    f"{_SQL}.execution.datasources.FileStatusWithMetadata": 2,
    f"{_SQL}.catalyst.encoders.ExpressionEncoder$Deserializer": 1,
    f"{_SQL}.catalyst.expressions.objects.NewInstance": 6,
    f"{_SQL}.catalyst.expressions.objects.Invoke": 8,
    f"{_SQL}.catalyst.expressions.objects.StaticInvoke": 9,
    f"{_SQL}.catalyst.expressions.objects.MapObjects": 4,
}
_METHODS = {"rootPaths": 0, "listFiles": 2, "inputFiles": 0, "refresh": 0, "sizeInBytes": 0, "partitionSchema": 0}

_FILE = pa.struct(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modification_time", pa.int64(), nullable=False),
    ]
)
_FILES = pa.list_(pa.field("element", _FILE, nullable=False))
_FILE_TYPE = spark_types.StructType(
    [
        spark_types.StructField("path", spark_types.StringType(), nullable=False),
        spark_types.StructField("size", spark_types.LongType(), nullable=False),
        spark_types.StructField("modification_time", spark_types.LongType(), nullable=False),
    ]
)
_FILES_TYPE = spark_types.ArrayType(_FILE_TYPE, containsNull=False)
_BY_FILE = 1 << 20  # bytes of Arrow from which a temporary file is faster than py4j, which encodes them as text
_SMALL_LOG = 1 << 20  # bytes of a checkpoint that is read to add up the size of a table without a checksum
_IDLE_CONNECTIONS = 8
_UNKNOWN_SIZE = (1 << 63) - 1  # as Spark has it: nothing of unknown size is broadcast

# Logged paths that may be encoded, absolute or have unusual segments; all others are below the root as they stand.
_MAYBE_NOT_PLAIN = r"[%:\x00]|^/|//|(^|/)\.|/$|^$"
_NOT_IN_URI = re.compile(r'[\x00-\x20"<>\\^`{|}%#?\[\]\x7f]')
_YES, _NO = True, False  # Java's signatures have no names for them

Method = TypeVar("Method", bound=Callable[..., Any])


def why_not(spark: SparkSession) -> str | None:
    """Return why a session cannot have a file index in Python, or None if it can. Changes nothing."""
    if ".connect" in type(spark).__module__:
        return "Spark Connect has no JVM on the client's side"
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        return "PYSPARK_PIN_THREAD is off"
    try:
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public API for it
        load = jvm.org.apache.spark.util.Utils.classForName
        context = spark.sparkContext._jsc  # noqa: SLF001 - py4j cannot load SparkEnv in Spark 4.3
        if context is None or context.sc().isStopped():
            raise OptionError("The Spark session was stopped", hint="start another session")
        for name, count in _CONSTRUCTORS.items():
            if all(each.getParameterCount() != count for each in load(name, _YES, _YES).getConstructors()):
                return f"{name} has another constructor in Spark {spark.version}"
        methods = load(_INDEX, _YES, _YES).getMethods()
        found = {each.getName(): each.getParameterCount() for each in methods if not each.isDefault()}
    except (Py4JError, AttributeError, TypeError, OSError) as error:
        return f"the JVM does not let this process call it ({type(error).__name__})"
    found = {name: count for name, count in found.items() if not name.endswith("$")}
    return None if found == _METHODS else f"FileIndex has other methods in Spark {spark.version}"


class TableFiles:
    """The files of one version of a table, for Spark. ``pinned`` keeps ``refresh`` from moving to the newest version.

    ``where`` prunes every listing in addition to the filters of the plan.
    """

    def __init__(self, snapshot: Snapshot, *, pinned: bool = False, where: Predicate | None = None) -> None:
        self.snapshot = snapshot
        self.where = where
        self.pinned = pinned
        self._token = uuid.uuid4().hex
        self._size: tuple[int, int | None] | None = None
        columns = [snapshot.schema.column((name,)) for name in snapshot.schema.partition_columns]
        self.partitions: tuple[Column, ...] = tuple(columns)
        self.has_vectors = "deletionVectors" in (snapshot.protocol.reader_features or ())

    @property
    def identity(self) -> str:
        """The table, its version and the static condition: equal ones list the same files."""
        # The text of a predicate leaves out values of long lists, so one with a condition equals only itself. The id
        # tells a table from one that was at the same place before, whose rows Spark may have cached.
        where = "" if self.where is None else f" where {self._token}"
        return f"{self.snapshot.store.identity} {self.snapshot.metadata.id}@{self.snapshot.version}{where}"

    def refresh(self) -> None:
        """Pin the newest version, unless a version was asked for."""
        if self.pinned:
            return
        newest = self.snapshot.table.snapshot()
        before, now = self.snapshot.schema, newest.schema
        known = {each.physical_name: each.type for each in now.fields}
        same = all(known.get(each.physical_name) == each.type for each in before.fields)
        vectors = "deletionVectors" in (newest.protocol.reader_features or ())
        modes = (before.partition_columns, before.column_mapping), (now.partition_columns, now.column_mapping)
        if not same or modes[0] != modes[1] or (vectors and not self.has_vectors):
            message = f"The columns of {self.snapshot.table.uri} changed between versions {self.snapshot.version}"
            raise OptionError(f"{message} and {newest.version}", hint="create the DataFrame or view again")
        self.snapshot = newest

    def size(self) -> int | None:
        """Return the size of all files in bytes, or None if only a listing of a large table would tell."""
        snapshot = self.snapshot
        if self._size is None or self._size[0] != snapshot.version:
            totals = state_at(snapshot)
            size = None if totals is None else totals.size
            if size is None and snapshot.segment.base_bytes <= _SMALL_LOG:
                size = sum(int(pc.sum(each.size).as_py() or 0) for each in self._batches(snapshot, None))
            self._size = snapshot.version, size
        return self._size[1]

    def listing(self, predicate: Predicate | None) -> pa.Table:
        """Return the files that may match: a row per partition, with its typed values and its list of files."""
        snapshot = self.snapshot
        parts = [each for each in (self.where, predicate) if each is not None]
        joined = conjunction(parts) if parts else None
        if joined is not None and self.snapshot.table.options.float_max == "trust":
            joined = believing_maxima(joined) or joined
        batches = self._batches(snapshot, joined)
        columns = [pa.field(f"p{index}", each.type.to_arrow()) for index, each in enumerate(self.partitions)]
        deleted = [pa.field("deleted", pa.binary())] if self.has_vectors else []
        schema = pa.schema([*columns, *deleted, pa.field("files", _FILES, nullable=False)])
        tables = [self._grouped(each, snapshot, schema) for each in _joined(batches, self.partitions)]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _batches(self, snapshot: Snapshot, predicate: Predicate | None) -> Iterator[FileBatch]:
        request = ScanRequest(predicate=predicate, quiet=True)
        with contextlib.closing(snapshot.scan(request).batches()) as batches:
            yield from batches

    def _grouped(self, files: _Files, snapshot: Snapshot, schema: pa.Schema) -> pa.Table:
        """Group files by their partition values, without a Python object per file. A vector is a group of its own."""
        count = len(files.path)
        code = np.zeros(count, np.int64)
        for values in files.texts:
            encoded = pc.dictionary_encode(values)
            nulls = len(encoded.dictionary)
            ids = pc.fill_null(encoded.indices, nulls).to_numpy(zero_copy_only=False).astype(np.int64)
            code = np.unique(code * (nulls + 1) + ids, return_inverse=True)[1]
        with_vector = np.zeros(count, np.bool_)
        if files.vectors is not None:
            with_vector = pc.is_valid(files.vectors).to_numpy(zero_copy_only=False)
            code = np.where(with_vector, code.max(initial=0) + 1 + np.arange(count), code)
        order = np.argsort(code, kind="stable")
        code = code[order]
        starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
        taken, first = from_numpy(order), from_numpy(order[starts])
        entries = pa.StructArray.from_arrays(
            [
                _hadoop_paths(pc.take(files.path, taken), snapshot),
                pc.take(files.size, taken),
                pc.take(files.modification_time, taken),
            ],
            fields=list(_FILE),
        )
        lists = pa.ListArray.from_arrays(
            from_numpy(np.append(starts, count).astype(np.int32), pa.int32()), entries, type=_FILES
        )
        arrays = [
            _typed(column, pc.take(texts, first), pc.take(files.path, first))
            for column, texts in zip(self.partitions, files.texts, strict=True)
        ]
        if self.has_vectors:
            arrays.append(self._deleted(files, order[starts], with_vector, snapshot))
        return pa.table([*arrays, lists], schema=schema)

    def _deleted(self, files: _Files, rows: Any, with_vector: Any, snapshot: Snapshot) -> pa.Array:
        found: list[bytes | None] = []
        for row in rows.tolist():
            if files.vectors is None or not with_vector[row]:
                found.append(None)
                continue
            said = {key: value for key, value in files.vectors[row].as_py().items() if value is not None}
            vector, path = msgspec.convert(said, DeletionVector), files.path[row].as_py()
            found.append(self._bitmap(snapshot, vector, path))
        return typed_array(found, pa.binary())

    def _bitmap(self, snapshot: Snapshot, vector: DeletionVector, path: str) -> bytes:
        # A vector is immutable by its name; the shared cache bounds what is kept.
        key = ("deleted rows", snapshot.store.identity, path, vector)
        known: bytes | None = self.snapshot.table.remembered.get(key)
        if known is None:
            known = read_deletion_vector(snapshot.store, vector, data_file=path).to_roaring(data_file=path)
            self.snapshot.table.remembered.put(key, known, len(known))
        return known


class _Files(msgspec.Struct, frozen=True):
    """Columns of files: a string per partition column, and deletion vectors if there are any."""

    path: pa.Array
    size: pa.Array
    modification_time: pa.Array
    texts: list[pa.Array]
    vectors: pa.Array | None


def _joined(batches: Iterator[FileBatch], partitions: Sequence[Column]) -> Iterator[_Files]:
    """Yield all files at once, or nothing if there are none."""
    found: list[_Files] = []
    for batch in batches:
        texts = [
            values if present is not None else pa.nulls(len(batch), pa.string())
            for _, values, present in partition_texts(batch.partition_values, partitions)
        ]
        found.append(_Files(batch.path, batch.size, batch.modification_time, texts, batch.deletion_vector))
    if not found:
        return
    typed = next((each.vectors.type for each in found if each.vectors is not None), None)
    vectors = [pa.nulls(len(each.path), typed) if each.vectors is None else each.vectors for each in found]
    yield _Files(
        _one([each.path for each in found]),
        _one([each.size for each in found]),
        _one([each.modification_time for each in found]),
        [_one([each.texts[index] for each in found]) for index in range(len(partitions))],
        None if typed is None else _one(vectors),
    )


def _one(arrays: list[pa.Array]) -> pa.Array:
    return one_array(pa.chunked_array(arrays))


def _typed(column: Column, texts: pa.Array, paths: pa.Array) -> pa.Array:
    """Return partition values in their type. An empty string is null; what is not a value of the type is an error."""
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    values = from_text(texts, column.type)
    if values.null_count == texts.null_count:
        return values
    # Values that lost information: they prune nothing, and rows have them all the same.
    stored = []
    for text, path in zip(texts.to_pylist(), paths.to_pylist(), strict=True):
        partition_value(text, column.type, column=column.name, path=path)  # raises if it is no value at all
        stored.append(stored_value(text, column.type, approximate=True) if text else None)
    return typed_array(stored, column.type.to_arrow())


def _hadoop_paths(paths: pa.Array, snapshot: Snapshot) -> pa.Array:
    """Return logged paths as Hadoop writes them: with a scheme, decoded. Nearly all are plain and below the root."""
    joined = pc.binary_join_element_wise(pa.scalar(hadoop_path(snapshot.store.place(""))), paths, "")
    odd = pc.match_substring_regex(paths, _MAYBE_NOT_PLAIN)
    if not odd.true_count:
        return joined
    texts = [hadoop_path(snapshot.store.uri_of(each)) for each in pc.filter(paths, odd).to_pylist()]
    return pc.replace_with_mask(joined, odd, string_array(texts))


def hadoop_path(place: str) -> str:
    """Return a location as a Hadoop path: not URL-encoded, and with a scheme that Hadoop knows."""
    if place.startswith("/"):
        return f"file:{place}"
    scheme, _, rest = place.partition("://")
    return f"s3a://{rest}" if scheme == "s3" else place


class SparkInternals:
    """Spark's own classes, as far as they are used here. One for each SparkContext."""

    _lock = threading.Lock()
    _known: ClassVar[dict[str, SparkInternals]] = {}

    @classmethod
    def of(cls, spark: SparkSession) -> SparkInternals:
        """Return the classes of a session's JVM. Those of a context that was stopped are dropped.

        A callback server that has ended is started again.
        """
        key = str(spark.sparkContext.applicationId)
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public API for it
        server = vars(gateway).get("_callback_server")
        with cls._lock:
            if server is not None and not (server.thread is not None and server.thread.is_alive()):
                with contextlib.suppress(OSError):
                    server.server_socket.close()
                gateway._callback_server = None  # noqa: SLF001
                cls._known.pop(key, None)
            if key not in cls._known:
                cls._known = {key: cls(spark)}
            return cls._known[key]

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public API for it
        self._gateway = gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # Without it, a Java exception raised in a callback reaches the user as thousands of characters of py4j.
        server: Any = getattr(gateway, "_callback_server", None)
        for holder in (gateway, server):
            with contextlib.suppress(AttributeError):
                holder.python_parameters.propagate_java_exceptions = True
        jvm: Any = spark._jvm  # noqa: SLF001
        self.jvm = jvm
        self.sql = jvm.org.apache.spark.sql
        self._callbacks = gateway.java_gateway_server.getCallbackClient()
        self._scala = jvm.scala.jdk.javaapi.CollectionConverters
        self.none = jvm.scala.Option.empty()
        self._arrow = getattr(getattr(self.jvm, f"{_SQL}.execution.arrow.ArrowConverters$"), "MODULE$")
        self._deserializer = getattr(self.jvm, f"{_SQL}.catalyst.encoders.ExpressionEncoder$Deserializer")
        self._local = threading.local()
        self.connections: list[tuple[Any, Any]] = []
        self._builders: dict[str, tuple[Any, Any]] = {}

    def seq(self, items: Sequence[Any]) -> Any:
        """Return a Scala Seq."""
        made = self.jvm.java.util.ArrayList()
        for each in items:
            made.add(each)
        return self._scala.asScala(made).toSeq()

    def strings(self, texts: Sequence[str]) -> Any:
        """Return an array of Java strings, by one call for all of them."""
        if not texts:
            return self._gateway.new_array(self.jvm.java.lang.String, 0)
        return self.jvm.java.util.regex.Pattern.compile("\0").split("\0".join(texts))

    def list(self, seq: Any) -> list[Any]:
        """Return a Scala Seq as a list."""
        return [seq.apply(index) for index in range(seq.size())]

    def type(self, kind: spark_types.DataType) -> Any:
        """Return a type of PySpark's as one of the JVM's."""
        return self.sql.types.DataType.fromJson(kind.json())

    def _class(self, name: str) -> Any:
        return self.jvm.org.apache.spark.util.Utils.classForName(name, _YES, _YES)

    def _object(self, name: str) -> Any:
        return self.sql.types.ObjectType(self._class(name))

    def _new(self, name: str, arguments: Sequence[Any]) -> Any:
        kind, objects = self._class(name), self.sql.catalyst.expressions.objects
        return objects.NewInstance(kind, self.seq(arguments), self.seq([]), _NO, self._object(name), self.none)

    def _invoke(self, target: Any, method: str, kind: Any, arguments: Sequence[Any] = ()) -> Any:
        objects, nothing = self.sql.catalyst.expressions.objects, self.seq([])
        return objects.Invoke(target, method, kind, self.seq(arguments), nothing, _YES, _YES, _YES)

    def _static(self, name: str, method: str, result: str, arguments: Sequence[Any]) -> Any:
        objects, nothing = self.sql.catalyst.expressions.objects, self.seq([])
        given = self.seq(arguments)
        return objects.StaticInvoke(
            self._class(name),
            self._object(result),
            method,
            given,
            nothing,
            _YES,
            _NO,
            _YES,
            self.none,
        )

    def relation(self, spark: SparkSession, index: DeltaFileIndex, data: spark_types.StructType) -> Any:
        """Return a Java DataFrame of the files of an index."""
        sources, session = self.sql.execution.datasources, spark._jsparkSession  # noqa: SLF001 - no public API
        no_options = getattr(self.jvm.scala.collection.immutable.Map, "from")(
            self._scala.asScala(self.jvm.java.util.HashMap())
        )
        parquet = sources.parquet.ParquetFileFormat()
        made = sources.HadoopFsRelation(index, index.schema, self.type(data), self.none, parquet, no_options, session)
        return session.baseRelationToDataFrame(made)

    def is_live(self) -> SparkColumn:
        """Return a column that is true for rows which no deletion vector hides.

        The bitmap is read in place for each row; nothing of it is copied or kept.
        """
        convert, expressions = self.sql.classic.ExpressionUtils, self.sql.catalyst.expressions
        deleted = convert.expression(F.col(DELETED_ROWS)._jc)  # noqa: SLF001 - PySpark has no public API for it
        position = convert.expression(F.col("_metadata.row_index").cast("int")._jc)  # noqa: SLF001
        buffer = self._static("java.nio.ByteBuffer", "wrap", "java.nio.ByteBuffer", [deleted])
        bitmap = self._new("org.roaringbitmap.buffer.ImmutableRoaringBitmap", [buffer])
        hit = self._invoke(bitmap, "contains", self.type(spark_types.BooleanType()), [position])
        live = expressions.Or(expressions.IsNull(deleted), expressions.Not(hit))
        return SparkColumn(convert.column(live))

    def builder(self, partitions: spark_types.StructType) -> tuple[Any, Any]:
        """Return expressions that make a PartitionDirectory of a row of a listing, and the type of such a row."""
        key = partitions.json()
        if key not in self._builders:
            self._builders[key] = self._builder(partitions)
        return self._builders[key]

    def _builder(self, partitions: spark_types.StructType) -> tuple[Any, Any]:
        expressions, count = self.sql.catalyst.expressions, len(partitions.fields)
        named: list[Any] = []
        for index, field in enumerate(partitions.fields):
            kind = self.type(field.dataType)
            name = expressions.Literal.create(f"p{index}", self.type(spark_types.StringType()))
            named += [name, expressions.BoundReference(index, kind, _YES)]
        row = expressions.CreateNamedStruct(self.seq(named))
        row = self._invoke(row, "copy", row.dataType())  # Arrow's memory is reused for the next batch
        file_type = self.type(_FILE_TYPE)
        each = expressions.objects.LambdaVariable("lazydelta_file", file_type, _NO, 1)
        text, size, time = (expressions.GetStructField(each, index, self.none) for index in range(3))
        path = self._new(
            "org.apache.hadoop.fs.Path", [self._invoke(text, "toString", self._object("java.lang.String"))]
        )
        no_folder = expressions.Literal.create(_NO, self.type(spark_types.BooleanType()))
        copies = expressions.Literal.create(1, self.type(spark_types.IntegerType()))
        status = self._new("org.apache.hadoop.fs.FileStatus", [size, no_folder, copies, size, time, path])
        sources = self.sql.execution.datasources
        metadata = getattr(sources.FileStatusWithMetadata, "apply$default$2")()
        map_type = self._object("scala.collection.immutable.Map")
        file = self._new(
            f"{_SQL}.execution.datasources.FileStatusWithMetadata", [status, expressions.Literal(metadata, map_type)]
        )
        files = expressions.BoundReference(count, self.type(_FILES_TYPE), _NO)
        as_seq = self.jvm.scala.Option.apply(self._class("scala.collection.immutable.Seq"))
        listed = expressions.objects.MapObjects(each, file, files, as_seq)
        made = self._new(f"{_SQL}.execution.datasources.PartitionDirectory", [row, listed])
        fields = [spark_types.StructField(f"p{index}", each.dataType) for index, each in enumerate(partitions.fields)]
        whole = spark_types.StructType([*fields, spark_types.StructField("files", _FILES_TYPE, nullable=False)])
        return self.seq([made]), self.type(whole)

    def _holds(self, filters: Sequence[Any], partitions: Any) -> Any:
        """Return Spark's own filters over a row of partition values, as a Scala function. Null is false."""
        expressions, joined = self.sql.catalyst.expressions, filters[0]
        for each in filters[1:]:
            joined = expressions.And(joined, each)
        used = {each.name(): each for each in self._scala.asJava(joined.references().toSeq())}
        known = self._scala.asJava(self.sql.catalyst.types.DataTypeUtils.toAttributes(partitions))
        attributes = expressions.package.AttributeSeq(self.seq([used.get(each.name(), each) for each in known]))
        bound = expressions.BindReferences.bindReference(joined, attributes, _NO)
        return self._deserializer(self.seq([bound]))

    def directories(
        self, listing: pa.Table, filters: Sequence[Any], partitions: spark_types.StructType, schema: Any
    ) -> Any:
        """Return the partitions of a listing that pass Spark's own filters, as a Scala Seq of PartitionDirectory."""
        builder, row = self.builder(partitions)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, listing.schema) as writer:
            writer.write_table(listing, max_chunksize=4096)
        data = sink.getvalue()
        with contextlib.ExitStack() as stack:
            if data.size < _BY_FILE:
                source = self.jvm.java.io.ByteArrayInputStream(data.to_pybytes())
                channel = self.jvm.java.nio.channels.Channels.newChannel(source)
            else:
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="lazydelta-", suffix=".arrows"))
                file.write(data)
                file.flush()
                channel = self.jvm.java.io.FileInputStream(file.name).getChannel()
            stack.callback(channel.close)
            batches = self._arrow.getBatchesFromStream(channel)
            rows = self._arrow.fromBatchIterator(batches, row, "UTC", _NO, _NO, None)
            # A function made of expressions has state: none is shared between threads.
            if filters:
                rows = rows.filter(self._holds(filters, schema))
            return rows.map(self._deserializer(builder)).toVector()

    def note_thread(self) -> None:
        """Remember the connection of the JVM thread that calls, and close those of threads that have ended.

        Spark's adaptive execution plans in new threads. py4j gives each a connection and a Python thread, which it
        never ends.
        """
        if getattr(self._local, "is_known", False):
            return
        self._local.is_known = True
        connection = self._callbacks.getPerThreadConnection()
        current = self.jvm.java.lang.Thread.currentThread
        thread = current()
        if len(self.connections) >= _IDLE_CONNECTIONS:
            self.close_ended()
        with self._lock:
            self.connections.append((thread, connection))

    def close_ended(self) -> None:
        """Close the connections of JVM threads that have ended."""
        with self._lock:
            known = list(self.connections)
        ended = [each for each in known if not each[0].isAlive()]
        gone = {id(each) for each in ended}  # objects of the JVM are compared by a call
        with self._lock:
            self.connections = [each for each in self.connections if id(each) not in gone]
        for _, connection in ended:
            if connection is not None:
                connection.shutdown()


def _guarded(method: Method) -> Method:
    """Raise what a callback raises as one Java exception with our words; py4j's connection stays usable."""

    @wraps(method)
    def call(self: DeltaFileIndex, *arguments: Any) -> Any:
        try:
            self.internals.note_thread()
            return method(self, *arguments)
        except Py4JJavaError:
            raise
        except BaseException as error:
            java, words = self.internals.jvm.java, f"{type(error).__name__}: {error}"
            if isinstance(error, LazyDeltaError):
                words = f"lazydelta.errors.{words}"
            if isinstance(error, KeyboardInterrupt):
                words = f"interrupted while listing {self.files.snapshot.table.uri}"
                made = java.util.concurrent.CancellationException(words)
            else:
                made = java.lang.IllegalArgumentException(words)  # PySpark shows this one without Java's stack
            raise Py4JJavaError(words, made) from error

    return call  # type: ignore[return-value]


class DeltaFileIndex:
    """Spark's ``FileIndex`` over the files of a table."""

    def __init__(self, internals: SparkInternals, files: TableFiles, partitions: spark_types.StructType) -> None:
        self.internals = internals
        self.files = files
        self._partitions = partitions
        self.schema = internals.type(partitions)

    @_guarded
    def toString(self) -> str:  # noqa: N802 - Java's name, as below
        """Return the identity, by which Spark shares caches and exchanges."""
        return f"lazydelta({self.files.identity})"

    @_guarded
    def hashCode(self) -> int:  # noqa: N802
        """Return a hash of the identity."""
        return hash(self.toString()) & 0x7FFFFFFF

    @_guarded
    def equals(self, other: Any) -> bool:
        """Compare with another index, which arrives as an object of the JVM."""
        return other is not None and bool(other.toString() == self.toString())

    @_guarded
    def rootPaths(self) -> Any:  # noqa: N802
        """Return the version for ``explain``, and the root. Two paths also keep Spark from writing to the folder."""
        jvm = self.internals.jvm
        version = jvm.org.apache.hadoop.fs.Path(f"lazydelta:/version={self.files.snapshot.version}")
        root = jvm.org.apache.hadoop.fs.Path(hadoop_path(self.files.snapshot.store.place("")))
        return self.internals.seq([version, root])

    @_guarded
    def refresh(self) -> None:
        """Move to the newest version, if no version was asked for."""
        self.files.refresh()

    @_guarded
    def metadataOpsTimeNs(self) -> Any:  # noqa: N802
        """Return nothing: Spark times the call itself."""
        return self.internals.none

    @_guarded
    def isTimeTravel(self) -> bool:  # noqa: N802
        """Return whether a version was asked for. Spark 4.3 asks, before it reads caches again after a write."""
        return self.files.pinned

    @_guarded
    def partitionSchema(self) -> Any:  # noqa: N802
        """Return the partition columns."""
        return self.schema

    @_guarded
    def sizeInBytes(self) -> int:  # noqa: N802
        """Return the size of the table, by which Spark chooses joins."""
        size = self.files.size()
        return _UNKNOWN_SIZE if size is None else size

    @_guarded
    def inputFiles(self) -> Any:  # noqa: N802
        """Return the locations of all files, encoded as Spark's own file indexes do."""
        listing = self.files.listing(None)
        paths = pc.struct_field(pc.list_flatten(one_array(listing["files"])), "path").to_pylist()
        return self.internals.strings([_NOT_IN_URI.sub(lambda found: quote(found[0], safe=""), each) for each in paths])

    @_guarded
    def listFiles(self, partition_filters: Any, data_filters: Any) -> Any:  # noqa: N802
        """Return the files for one scan of a plan."""
        exact = self.internals.list(partition_filters)
        predicate = predicate_of([*exact, *self.internals.list(data_filters)], self.files.snapshot.schema)
        listing = self.files.listing(predicate)
        return self.internals.directories(listing, exact, self._partitions, self.schema)

    class Java:
        """What py4j looks for."""

        implements: ClassVar[list[str]] = [_INDEX]
