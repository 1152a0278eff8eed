from __future__ import annotations

import json
from typing import Any

import pytest

from lazydelta.errors import CorruptLogError, UnsupportedFeatureError
from lazydelta.protocol.actions import Format, Metadata, Protocol
from lazydelta.protocol.arrow_types import is_widening
from lazydelta.protocol.features import (
    FEATURES,
    READER_FEATURES,
    Feature,
    ReadSupport,
    Writing,
    check_copyable,
    check_readable,
    check_writable,
    column_mapping_mode,
)
from lazydelta.protocol.schema import Decimal, Primitive


def _metadata(properties: dict[str, str | None] | None = None, **field: Any) -> Metadata:
    fields = [{"name": "a", "type": "long", "nullable": True, "metadata": {}} | field]
    return Metadata(id="t", schema_string=json.dumps({"type": "struct", "fields": fields}), configuration=properties)


def _features(*names: str) -> Protocol:
    return Protocol(min_reader_version=3, min_writer_version=7, reader_features=names, writer_features=names)


@pytest.mark.parametrize("version", [1, 2])
def test_the_versions_before_table_features_are_readable(version: int) -> None:
    check_readable(Protocol(min_reader_version=version, min_writer_version=5), _metadata())


def test_every_supported_reader_feature_is_readable_together() -> None:
    check_readable(_features(*READER_FEATURES), _metadata())


def test_features_that_bind_writers_alone_do_not_keep_us_from_reading() -> None:
    writers = ("appendOnly", "rowTracking", "domainMetadata", "clustering", "inCommitTimestamp", "somethingNew")
    check_readable(Protocol(min_reader_version=1, min_writer_version=7, writer_features=writers), _metadata())


def test_every_unknown_reader_feature_is_named() -> None:
    protocol = _features("deletionVectors", "geospatial", "collations-preview")
    with pytest.raises(UnsupportedFeatureError, match="collations-preview, geospatial") as caught:
        check_readable(protocol, _metadata(), path="s3://bucket/table")
    assert caught.value.features == ("collations-preview", "geospatial")
    assert caught.value.path == "s3://bucket/table"


def test_a_reader_version_from_the_future_is_refused_by_number() -> None:
    with pytest.raises(UnsupportedFeatureError, match="reader version 4"):
        check_readable(Protocol(min_reader_version=4, min_writer_version=7), _metadata())


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(min_reader_version=0, min_writer_version=5),
        Protocol(min_reader_version=3, min_writer_version=7),
        Protocol(min_reader_version=1, min_writer_version=7, reader_features=("deletionVectors",)),
    ],
    ids=["version 0", "features missing", "features without version 3"],
)
def test_a_protocol_that_contradicts_itself_is_corrupt(protocol: Protocol) -> None:
    with pytest.raises(CorruptLogError, match="protocol"):
        check_readable(protocol, _metadata())


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_catalog_managed_table_is_readable_only_with_a_log_tail(feature: str) -> None:
    check_readable(_features(feature), _metadata(), has_log_tail=True)
    with pytest.raises(UnsupportedFeatureError, match=r"managed by a catalog.*log_tail") as caught:
        check_readable(_features(feature), _metadata())
    assert caught.value.features == (feature,)


def test_data_that_is_not_parquet_is_refused() -> None:
    metadata = Metadata(id="t", schema_string='{"type":"struct","fields":[]}', format=Format(provider="orc"))
    with pytest.raises(UnsupportedFeatureError, match="orc"):
        check_readable(Protocol(min_reader_version=1, min_writer_version=2), metadata)


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [
        (Protocol(min_reader_version=2, min_writer_version=5), "name"),
        (_features("columnMapping"), "name"),
        (_features("deletionVectors"), "none"),
        (Protocol(min_reader_version=1, min_writer_version=5), "none"),
    ],
    ids=["version 2", "feature", "feature missing", "version 1"],
)
def test_column_mapping_counts_only_where_the_protocol_supports_it(protocol: Protocol, mode: str) -> None:
    metadata = _metadata({"delta.columnMapping.mode": "name"})
    assert column_mapping_mode(metadata, protocol) == mode


def test_column_mapping_is_off_where_the_property_is_missing() -> None:
    assert column_mapping_mode(_metadata(), Protocol(min_reader_version=2, min_writer_version=5)) == "none"


def test_an_unknown_column_mapping_mode_is_refused_by_name() -> None:
    metadata = _metadata({"delta.columnMapping.mode": "position"})
    with pytest.raises(UnsupportedFeatureError, match="position"):
        check_readable(Protocol(min_reader_version=2, min_writer_version=5), metadata)


def _changed(*changes: Any) -> Metadata:
    return _metadata(metadata={"delta.typeChanges": list(changes)})


def test_recorded_type_changes_that_widen_are_readable() -> None:
    check_readable(
        _features("typeWidening"),
        _changed({"fromType": "short", "toType": "integer"}, {"fromType": "integer", "toType": "long"}),
    )


def test_a_recorded_type_change_that_is_no_widening_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"'a' was changed from long to string"):
        check_readable(_features("typeWidening"), _changed({"fromType": "long", "toType": "string"}))


@pytest.mark.parametrize("changes", ["short", [3], [{"fromType": "short"}]], ids=str)
def test_type_changes_of_another_shape_are_corrupt(changes: object) -> None:
    with pytest.raises(CorruptLogError, match="'a'"):
        check_readable(_features("typeWidening"), _metadata(metadata={"delta.typeChanges": changes}))


def test_a_type_change_nested_in_a_map_of_structs_is_found() -> None:
    inner = {"name": "b", "type": "long", "metadata": {"delta.typeChanges": [{"fromType": "date", "toType": "long"}]}}
    value = {"type": "struct", "fields": [inner]}
    nested = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": value}}
    with pytest.raises(UnsupportedFeatureError, match=r"'a\.b'"):
        check_readable(_features("typeWidening"), _metadata(type=nested))


@pytest.mark.parametrize(
    ("narrow", "wide", "allowed"),
    [
        (Primitive("byte"), Primitive("long"), True),
        (Primitive("integer"), Primitive("double"), True),
        (Primitive("long"), Primitive("double"), False),
        (Primitive("long"), Primitive("integer"), False),
        (Primitive("float"), Primitive("double"), True),
        (Primitive("date"), Primitive("timestamp_ntz"), True),
        (Primitive("date"), Primitive("timestamp"), False),
        (Primitive("integer"), Decimal(10, 0), True),
        (Primitive("integer"), Decimal(11, 2), False),
        (Primitive("integer"), Decimal(12, 2), True),
        (Primitive("byte"), Decimal(4, 1), True),
        (Primitive("byte"), Decimal(3, 1), False),
        (Primitive("short"), Decimal(6, 1), True),
        (Primitive("short"), Decimal(4, 0), False),
        (Primitive("long"), Decimal(20, 0), True),
        (Primitive("long"), Decimal(20, 1), True),
        (Primitive("long"), Decimal(20, 2), False),
        (Primitive("long"), Decimal(18, 0), False),
        (Decimal(5, 2), Decimal(7, 3), True),
        (Decimal(5, 2), Decimal(6, 4), False),
        (Decimal(5, 2), Decimal(10, 1), False),
        (Primitive("void"), Primitive("string"), True),
        (Primitive("string"), Decimal(10, 0), False),
        (Decimal(5, 2), Primitive("double"), False),
    ],
    ids=str,
)
def test_widening_keeps_every_value(narrow: Any, wide: Any, allowed: bool) -> None:  # noqa: FBT001
    assert is_widening(narrow, wide) is allowed


def _name(feature: Feature) -> str:
    return feature.name


def _for_writers(feature: Feature) -> Protocol:
    return Protocol(min_reader_version=1, min_writer_version=7, writer_features=(feature.name,))


def test_no_feature_is_in_the_table_twice() -> None:
    names = [each.name for each in FEATURES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("feature", FEATURES, ids=_name)
def test_a_table_is_read_as_the_table_of_features_says(feature: Feature) -> None:
    match feature.reading:
        case ReadSupport.FREE:
            check_readable(_for_writers(feature), _metadata())
            # Listed for readers it is something else than the feature that we know.
            with pytest.raises(UnsupportedFeatureError, match=feature.name):
                check_readable(_features(feature.name), _metadata())
        case ReadSupport.DONE:
            check_readable(_features(feature.name), _metadata())
        case ReadSupport.WITH_LOG_TAIL:
            check_readable(_features(feature.name), _metadata(), has_log_tail=True)
            with pytest.raises(UnsupportedFeatureError, match=feature.name):
                check_readable(_features(feature.name), _metadata())


@pytest.mark.parametrize("feature", FEATURES, ids=_name)
def test_a_table_is_written_as_the_table_of_features_says(feature: Feature) -> None:
    if feature.writing is not Writing.REFUSED:
        check_writable(_for_writers(feature), _metadata())
        return
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_writable(_for_writers(feature), _metadata())
    assert caught.value.features == (feature.name,)


@pytest.mark.parametrize("feature", [each for each in FEATURES if each.switch], ids=_name)
def test_a_property_that_switches_on_what_we_do_not_write_is_refused(feature: Feature) -> None:
    protocol = Protocol(min_reader_version=1, min_writer_version=2)
    check_writable(protocol, _metadata({str(feature.switch): "false"}))
    with pytest.raises(UnsupportedFeatureError, match=str(feature.switch)) as caught:
        check_writable(protocol, _metadata({str(feature.switch): "true"}))
    assert caught.value.features == (feature.name,)


@pytest.mark.parametrize("feature", [each for each in FEATURES if each.column_mark and not each.nested_only], ids=_name)
def test_a_column_that_asks_for_what_we_do_not_write_is_refused(feature: Feature) -> None:
    protocol = Protocol(min_reader_version=1, min_writer_version=2)
    with pytest.raises(UnsupportedFeatureError, match="the column 'a'") as caught:
        check_writable(protocol, _metadata(metadata={f"{feature.column_mark}x": "1 = 1"}))
    assert caught.value.features == (feature.name,)


@pytest.mark.parametrize("feature", FEATURES, ids=_name)
def test_a_checkpoint_is_written_where_it_loses_nothing(feature: Feature) -> None:
    if feature.copied:
        check_copyable(_for_writers(feature), path="memory:///t")
        return
    with pytest.raises(UnsupportedFeatureError, match=f"could lose .*{feature.name}"):
        check_copyable(_for_writers(feature), path="memory:///t")


@pytest.mark.parametrize("feature", ["collations-preview", "geospatial", "appendonly"])
def test_a_feature_that_is_not_in_the_table_is_refused_by_name_everywhere(feature: str) -> None:
    protocol = _features(feature)
    with pytest.raises(UnsupportedFeatureError, match=feature):
        check_readable(protocol, _metadata())
    with pytest.raises(UnsupportedFeatureError, match=feature):
        check_writable(protocol, _metadata())
    with pytest.raises(UnsupportedFeatureError, match=feature):
        check_copyable(protocol, path="memory:///t")
