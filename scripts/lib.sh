# Sourced by the other scripts (POSIX sh): change to the repository's root, and define functions for the environment .venv.

cd -- "$(dirname -- "$0")/.." || exit 1
ROOT=$(pwd)
VENV=$ROOT/.venv

# With --help anywhere, print the comment at the top of the script, and install nothing.
for word in "$@"; do
    if [ "$word" = --help ] || [ "$word" = -h ]; then
        awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$ROOT/scripts/$(basename -- "$0")"
        exit 0
    fi
done

# Options of pytest: run three processes, because on two cores two of them leave half of the time unused: tests wait for
# servers. One process runs all tests of a file, because they share servers. Take the files in the order of
# tests/support/hooks.py, not by their number of tests.
IN_PARALLEL='--numprocesses 3 --dist loadfile --no-loadscope-reorder'

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2; exit 1; }

# took STAGE: print how long it took since the last stage ended, or since the script began.
STAGE_BEGAN=$(date +%s)
took() {
    now=$(date +%s)
    say "$1 took $(((now - STAGE_BEGAN) / 60)) min $(((now - STAGE_BEGAN) % 60)) s"
    STAGE_BEGAN=$now
}

# Print the path of the newest Python >= 3.11 on PATH that can create environments. $PYTHON takes precedence.
find_python() {
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or newer with its venv module; name one with PYTHON=/path/to/python3"
}

# interpreter VERSION: print the path of Python VERSION (as 3.13): from PATH, from pyenv, or from uv, which downloads it.
interpreter() {
    for candidate in "python$1" "$(pyenv root 2>/dev/null)/versions/$1"*"/bin/python$1"; do
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    uv=$(command -v uv) || {
        uv=$ROOT/.cache/uv/bin/uv
        [ -x "$uv" ] || { "$(find_python)" -m venv "$ROOT/.cache/uv" && "$ROOT/.cache/uv/bin/pip" install -q uv >&2; } ||
            die "could not install uv, which fetches Python $1. Put python$1 on PATH."
    }
    "$uv" python install -q "$1" && "$uv" python find --managed-python "$1" ||
        die "found no Python $1, and uv could not fetch it. Put python$1 on PATH."
}

# Run a command to its end. SIGTERM and Ctrl-C are passed on as SIGTERM, and the script ends after the command has.
guarded() {
    stopped=
    "$@" &
    child=$!
    trap 'stopped=1; kill -TERM "$child" 2>/dev/null || :' TERM INT
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child" || status=$?; done
    trap - TERM INT
    [ -z "$stopped" ] || exit 143
    return "$status"
}

# pytest_of PYTHON ARGUMENTS: run pytest with this Python. A shell lets its background commands ignore SIGINT, which some
# tests send to their children.
pytest_of() {
    of=$1
    shift
    guarded "$of" -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])' "$@"
}

# steady PYTHON ARGUMENTS: run pytest with this Python. If one to three tests fail, run them again, three times, with no
# other tests beside them. If they pass each time, name them in .cache/unsteady.txt, and return 0: they depend on a moment,
# and must be mended. More failures, or one in the repetitions, count as failures.
steady() {
    cache=$ROOT/.pytest_cache/v/cache/lastfailed python=$1
    shift
    rm -f "$cache"
    status=0
    pytest_of "$python" "$@" || status=$?
    [ "$status" -eq 1 ] && [ -f "$cache" ] || return "$status"
    failed=$("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache") || return 1
    [ "$(printf '%s\n' "$failed" | wc -l)" -le 3 ] || return 1
    cp "$cache" "$ROOT/.cache/failed.json"
    for repeat in first second third; do
        say "Repeating the failed tests for the $repeat time"
        cp "$ROOT/.cache/failed.json" "$cache"
        pytest_of "$python" "$@" --numprocesses 0 --last-failed --last-failed-no-failures none || return 1
    done
    printf '%s\n' "$failed" >>"$ROOT/.cache/unsteady.txt"
}

# environment [demo]: create the environment $VENV (by default .venv) and install oncelog into it. With demo, install the
# packages that the demo needs, otherwise those of tests and checks, too. Install nothing if this was done before with the
# same pyproject.toml. During an installation, a file in .cache exists. A run that finds it creates the environment again.
environment() {
    wanted=${1:-dev}
    stamp=$(cksum pyproject.toml)
    unfinished=$ROOT/.cache/$(basename "$VENV").unfinished
    if [ ! -e "$unfinished" ] && [ -x "$VENV/bin/python" ]; then
        if installed .installed || { [ "$wanted" = demo ] && installed .installed-demo; }; then
            return
        fi
    fi
    python=$(find_python) || exit 1
    mkdir -p "$ROOT/.cache"
    if [ -e "$unfinished" ] || ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        : >"$unfinished"
        say "Creating ${VENV#"$ROOT/"} with $("$python" -V)"
        guarded "$python" -m venv --clear "$VENV" || die "could not create $VENV"
    fi
    : >"$unfinished"
    if [ "$wanted" = demo ]; then
        needs='the packages of the demo' size='1.2 GB' mark=.installed-demo
    else
        needs='the packages of its tests' size='1.7 GB' mark=.installed
    fi
    say "Installing oncelog and $needs into ${VENV#"$ROOT/"} (the first time about $size: PySpark, a JDK, Arrow)"
    guarded env ONCELOG_PURE=1 "$VENV/bin/python" -m pip install --disable-pip-version-check -e ".[$wanted]" >&2 ||
        die "the installation failed, see above; run this script again"
    printf '%s\n' "$stamp" >"$VENV/$mark"
    rm -f "$unfinished"
}

# Return 0 if this mark in .venv was written for the current pyproject.toml.
installed() { [ "$(cat "$VENV/$1" 2>/dev/null)" = "$stamp" ]; }

# debian PACKAGE COMMAND: install a Debian package if the command is missing.
debian() {
    if ! command -v "$2" >/dev/null 2>&1; then
        command -v apt-get >/dev/null 2>&1 || die "needs $2: install it, or run this script on a system with apt-get"
        say "Installing Debian's $1, for $2"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null; } ||
            die "could not install $1 (needs root)"
    fi
}

# Unpack Debian's Prometheus, once, and set ONCELOG_PROMETHEUS to the folder of its programs. Installing it would start it.
prometheus() {
    ONCELOG_PROMETHEUS=${ONCELOG_PROMETHEUS:-$ROOT/.cache/prometheus/usr/bin}
    export ONCELOG_PROMETHEUS
    if [ "$ONCELOG_PROMETHEUS" = "$ROOT/.cache/prometheus/usr/bin" ] && [ ! -x "$ONCELOG_PROMETHEUS/promtool" ]; then
        command -v apt-get >/dev/null 2>&1 || die "needs Prometheus: set ONCELOG_PROMETHEUS to the folder of its programs"
        say "Fetching Debian's Prometheus (about 100 MB) into .cache/prometheus"
        rm -rf "$ROOT/.cache/prometheus"
        mkdir -p "$ROOT/.cache/prometheus"
        { apt-get update -qq && (cd "$ROOT/.cache/prometheus" && apt-get download -qq prometheus 2>/dev/null &&
            dpkg -x prometheus_*.deb . && rm prometheus_*.deb); } || die "could not fetch Debian's Prometheus"
    fi
}

# maven GOAL [ARGUMENTS]: run a goal of Maven's dependency plugin, up to three times, because a download may fail.
maven() {
    debian maven mvn
    goal=$1
    shift
    for _ in 1 2 3; do
        mvn -q -B "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:$goal" "$@" && return
    done
    return 1
}

# jars FOLDER NAME POM WHAT [ARGUMENTS]: if FOLDER is NAME in .cache, copy the jars that the POM names into it, once.
jars() {
    folder=$1 name=$2 pom=$3 what=$4
    shift 4
    if [ "$folder" = "$ROOT/.cache/$name" ] && ! cmp -s "$pom" "$folder/.complete"; then
        say "Fetching $what with Maven into .cache/$name"
        maven copy-dependencies -f "$pom" -DoutputDirectory="$folder" "$@" || die "Maven could not fetch $what"
        cp "$pom" "$folder/.complete"
    fi
}

# Fetch Apache Kafka with its tools, once, and set ONCELOG_KAFKA_LIBS to the folder.
apache_kafka() {
    debian default-jre-headless java
    ONCELOG_KAFKA_LIBS=${ONCELOG_KAFKA_LIBS:-$ROOT/.cache/kafka-libs}
    export ONCELOG_KAFKA_LIBS
    jars "$ONCELOG_KAFKA_LIBS" kafka-libs conformance/pom.xml \
        "Apache Kafka 4.3.1, its tools and Kafka Streams (about 130 MB)"
}

# Fetch the Java client of Kafka 2.0.0, once, and set ONCELOG_OLD_JAVA_CLIENT to the folder. Install a Java compiler.
old_java_client() {
    debian default-jdk-headless javac
    ONCELOG_OLD_JAVA_CLIENT=${ONCELOG_OLD_JAVA_CLIENT:-$ROOT/.cache/kafka-clients-2.0.0}
    export ONCELOG_OLD_JAVA_CLIENT
    jars "$ONCELOG_OLD_JAVA_CLIENT" kafka-clients-2.0.0 conformance/java/pom.xml \
        "the Java client of Kafka 2.0.0 (about 4 MB)"
}

# Fetch Apache Kafka's integration tests of its clients, and JUnit, once, and set ONCELOG_KAFKA_TESTS to the folder.
kafka_tests() {
    ONCELOG_KAFKA_TESTS=${ONCELOG_KAFKA_TESTS:-$ROOT/.cache/kafka-tests}
    export ONCELOG_KAFKA_TESTS
    jars "$ONCELOG_KAFKA_TESTS" kafka-tests conformance/java/integration/pom.xml \
        "Apache Kafka's integration tests and JUnit (about 7 MB)" -DexcludeTransitive=true
}

# Write an archive of Apache Kafka's classes, once, and set ONCELOG_KAFKA_CLASSES to it: its brokers and tools start in
# half of the CPU time. Benchmarks do not use it.
kafka_classes() {
    ONCELOG_KAFKA_CLASSES=$ROOT/.cache/kafka-classes.jsa
    if [ ! -f "$ONCELOG_KAFKA_CLASSES" ]; then
        say "Writing an archive of Apache Kafka's classes into .cache"
        guarded env PYTHONPATH=tests "$VENV/bin/python" -m support.class_archive "$ONCELOG_KAFKA_CLASSES" || return 0
    fi
    export ONCELOG_KAFKA_CLASSES
}

# spark_version VERSION: install this PySpark, once, and put it before the one of .venv.
spark_version() {
    case ${1:-} in 4.[0-9]) ;; *) die "--spark needs a version of PySpark, such as 4.0" ;; esac
    other=$ROOT/.cache/pyspark-$1
    if [ ! -f "$other/.complete" ]; then
        say "Installing PySpark $1 (about 450 MB) into .cache/pyspark-$1"
        rm -rf "$other"
        "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --target "$other" "pyspark==$1.*" >&2 ||
            die "the installation failed, see above; run this script again"
        : >"$other/.complete"
    fi
    PYTHONPATH=$other${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
}

# Create an environment with the newest PySpark for which Spark's own Kafka connector exists, fetch the connector, and set
# ONCELOG_SPARK_RIVAL to the folder.
spark_rival() {
    debian default-jre-headless java
    ONCELOG_SPARK_RIVAL=${ONCELOG_SPARK_RIVAL:-$ROOT/.cache/spark-rival}
    export ONCELOG_SPARK_RIVAL
    if [ ! -f "$ONCELOG_SPARK_RIVAL/.complete" ] && [ "$ONCELOG_SPARK_RIVAL" = "$ROOT/.cache/spark-rival" ]; then
        say "Installing PySpark 4.1.3 and Spark's Kafka connector (about 500 MB) into .cache/spark-rival"
        "$VENV/bin/python" -m venv --clear "$ONCELOG_SPARK_RIVAL/venv" || die "could not create an environment"
        "$ONCELOG_SPARK_RIVAL/venv/bin/python" -m pip install -q --disable-pip-version-check pyspark==4.1.3 >&2 ||
            die "the installation failed, see above; run this script again"
        for jar in org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3 \
            org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 \
            org.apache.kafka:kafka-clients:3.9.1 org.apache.commons:commons-pool2:2.12.0; do
            maven copy -Dartifact="$jar" -DoutputDirectory="$ONCELOG_SPARK_RIVAL/jars" ||
                die "Maven could not fetch $jar"
        done
        touch "$ONCELOG_SPARK_RIVAL/.complete"
    fi
}

# spark_avro: fetch the jar with from_avro for the PySpark of spark_rival, once.
spark_avro() {
    [ -n "$(find "$ONCELOG_SPARK_RIVAL/avro" -name '*.jar' 2>/dev/null)" ] ||
        maven copy -Dartifact=org.apache.spark:spark-avro_2.13:4.1.1 -DoutputDirectory="$ONCELOG_SPARK_RIVAL/avro" ||
        die "Maven could not fetch spark-avro"
}
