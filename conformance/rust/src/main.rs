//! The checks of conformance/test_foreign_clients.py for rskafka. Prints a line PASS NAME or FAIL NAME: REASON for each.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rskafka::client::error::{Error as ClientError, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};

type Outcome = Result<(), Box<dyn Error>>;

const CHECKS: [&str; 8] = [
    "codec-gzip", "codec-lz4", "codec-none", "codec-snappy", "codec-zstd", "delete-records", "offsets-by-time",
    "out-of-range",
];

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000 + seconds, 0).expect("a time of this century")
}

fn record(number: i64) -> Record {
    Record {
        key: Some(format!("key{number}").into_bytes()),
        value: Some(format!("{number} ").repeat(40).into_bytes()),
        headers: BTreeMap::from([("h".to_owned(), number.to_be_bytes().to_vec())]),
        timestamp: at(number),
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(got: T, want: T) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("got {got:?}, want {want:?}").into()) }
}

async fn topic(client: &Client, name: &str) -> Result<PartitionClient, Box<dyn Error>> {
    client.controller_client()?.create_topic(name, 1, 1, 10_000).await?;
    Ok(client.partition_client(name, 0, UnknownTopicHandling::Retry).await?)
}

async fn read(partition: &PartitionClient, from: i64, count: usize) -> Result<Vec<RecordAndOffset>, ClientError> {
    let mut found: Vec<RecordAndOffset> = Vec::new();
    while found.len() < count {
        let next = found.last().map_or(from, |record| record.offset + 1);
        found.extend(partition.fetch_records(next, 1..1_000_000, 1000).await?.0);
    }
    Ok(found)
}

async fn codec(partition: &PartitionClient, compression: Compression) -> Outcome {
    let offsets = partition.produce((0..200).map(record).collect(), compression).await?;
    equal(offsets, (0..200).collect())?;
    for (number, found) in read(partition, 0, 200).await?.into_iter().enumerate() {
        equal((found.offset, found.record), (number as i64, record(number as i64)))?;
    }
    Ok(())
}

async fn delete_records(partition: &PartitionClient) -> Outcome {
    partition.produce((0..10).map(record).collect(), Compression::NoCompression).await?;
    partition.delete_records(4, 10_000).await?;
    equal(partition.get_offset(OffsetAt::Earliest).await?, 4)?;
    equal(partition.get_offset(OffsetAt::Latest).await?, 10)?;
    equal(read(partition, 4, 6).await?[0].record.clone(), record(4))
}

async fn offsets_by_time(partition: &PartitionClient) -> Outcome {
    for number in 0..10 {
        partition.produce(vec![record(number)], Compression::NoCompression).await?;
    }
    equal(partition.get_offset(OffsetAt::Timestamp(at(6))).await?, 6)
}

async fn out_of_range(partition: &PartitionClient) -> Outcome {
    match partition.fetch_records(77, 1..1000, 100).await {
        Err(ClientError::ServerError { protocol_error: ProtocolError::OffsetOutOfRange, .. }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

async fn check(client: &Client, name: &str, topic_name: &str) -> Outcome {
    let partition = topic(client, topic_name).await?;
    match name {
        "codec-gzip" => codec(&partition, Compression::Gzip).await,
        "codec-lz4" => codec(&partition, Compression::Lz4).await,
        "codec-none" => codec(&partition, Compression::NoCompression).await,
        "codec-snappy" => codec(&partition, Compression::Snappy).await,
        "codec-zstd" => codec(&partition, Compression::Zstd).await,
        "delete-records" => delete_records(&partition).await,
        "offsets-by-time" => offsets_by_time(&partition).await,
        "out-of-range" => out_of_range(&partition).await,
        _ => Err("no such check".into()),
    }?;
    client.controller_client()?.delete_topic(topic_name, 10_000).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().collect();
    let (bootstrap, prefix) = (&arguments[1], &arguments[2]);
    let client = ClientBuilder::new(vec![bootstrap.clone()]).build().await?;
    for name in CHECKS {
        let topic_name = format!("{prefix}-{name}");
        let work = check(&client, name, &topic_name);
        match tokio::time::timeout(Duration::from_secs(60), work).await {
            Ok(Ok(())) => println!("PASS {name}"),
            Ok(Err(error)) => println!("FAIL {name}: {error}"),
            Err(_) => println!("FAIL {name}: not done within a minute"),
        }
    }
    Ok(())
}
