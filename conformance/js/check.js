// The checks of conformance/test_foreign_clients.py for kafkajs. Prints a line PASS NAME or FAIL NAME: REASON for each.
'use strict'

const assert = require('node:assert/strict')
const { CompressionTypes, ConfigResourceTypes, Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const [bootstrap, prefix] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], clientId: 'conformance', logLevel: logLevel.NOTHING })
const admin = kafka.admin()

async function topic(name, numPartitions = 1) {
  const made = `${prefix}-${name}`
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic: made, numPartitions, replicationFactor: 1 }] })
  return made
}

// Wait for a change: each of several brokers may learn of it later.
async function eventually(holds) {
  for (let attempt = 1; !(await holds()); attempt++) {
    assert.ok(attempt < 600, 'the change is not visible')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

async function withProducer(options, work) {
  const producer = kafka.producer(options)
  await producer.connect()
  try {
    return await work(producer)
  } finally {
    await producer.disconnect()
  }
}

// Reads `count` records of a topic from its start, in its own group.
async function read(where, count, options = {}) {
  const consumer = kafka.consumer({ groupId: `${where}-${Math.random()}`, ...options })
  await consumer.connect()
  await consumer.subscribe({ topic: where, fromBeginning: true })
  const found = []
  try {
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`only ${found.length} of ${count} records came`)), 30000)
      consumer.on(consumer.events.CRASH, ({ payload }) => { clearTimeout(timer); reject(payload.error) })
      consumer.run({
        eachMessage: async ({ message }) => {
          found.push(message)
          if (found.length === count) {
            clearTimeout(timer)
            resolve()
          }
        },
      }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return found
}

const text = (messages) => messages.map(({ value }) => (value === null ? null : value.toString()))

const codec = (compression) => async (name) => {
  const where = await topic(name)
  const messages = Array.from({ length: 200 }, (_, i) => ({
    key: `key${i}`, value: `${i} `.repeat(40), headers: { h: Buffer.from([i]) }, timestamp: String(1700000000000 + i),
  }))
  await withProducer({}, (producer) => producer.send({ topic: where, compression, messages, acks: -1 }))
  const found = await read(where, 200)
  found.forEach((message, i) => {
    assert.equal(message.key.toString(), `key${i}`)
    assert.equal(message.value.toString(), `${i} `.repeat(40))
    assert.deepEqual(message.headers.h, Buffer.from([i]))
    assert.equal(message.timestamp, String(1700000000000 + i))
    assert.equal(message.offset, String(i))
  })
}

const checks = {
  'codec-gzip': codec(CompressionTypes.GZIP),
  'codec-none': codec(CompressionTypes.None),

  async idempotent(name) {
    const where = await topic(name)
    await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (let i = 0; i < 20; i++) await producer.send({ topic: where, messages: [{ value: String(i) }] })
    })
    assert.deepEqual(text(await read(where, 20)), Array.from({ length: 20 }, (_, i) => String(i)))
  },

  async transactions(name) {
    const where = await topic(name)
    const options = { transactionalId: `${prefix}-${name}`, maxInFlightRequests: 1, idempotent: true }
    await withProducer(options, async (producer) => {
      for (const [i, end] of [[0, 'commit'], [1, 'abort'], [2, 'commit']]) {
        const transaction = await producer.transaction()
        await transaction.send({ topic: where, messages: [0, 1].map((j) => ({ value: `${i}-${j}` })) })
        await transaction[end]()
      }
    })
    assert.deepEqual(text(await read(where, 4)), ['0-0', '0-1', '2-0', '2-1'])
    assert.deepEqual(
      text(await read(where, 6, { readUncommitted: true })), ['0-0', '0-1', '1-0', '1-1', '2-0', '2-1'])
  },

  async 'offsets-in-transaction'(name) {
    const where = await topic(name)
    const groupId = `${prefix}-${name}`
    const options = { transactionalId: groupId, maxInFlightRequests: 1, idempotent: true }
    await withProducer(options, async (producer) => {
      for (const [offset, end] of [['5', 'commit'], ['9', 'abort']]) {
        const transaction = await producer.transaction()
        const topics = [{ topic: where, partitions: [{ partition: 0, offset }] }]
        for (let attempt = 1; ; attempt++) {
          try {
            await transaction.sendOffsets({ consumerGroupId: groupId, topics })
            break
          } catch (error) {
            if (attempt === 100 || !PASSING.test(error.message)) throw error
            await new Promise((resolve) => setTimeout(resolve, 20))
          }
        }
        await transaction[end]()
      }
    })
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [where] })
    assert.equal(partitions[0].offset, '5')
  },

  async fencing(name) {
    const where = await topic(name)
    const options = { transactionalId: `${prefix}-${name}`, maxInFlightRequests: 1, idempotent: true, retry: { retries: 1 } }
    await withProducer(options, async (first) => {
      const zombie = await first.transaction()
      await zombie.send({ topic: where, messages: [{ value: 'zombie' }] })
      await withProducer({ ...options, retry: { retries: 10 } }, async (second) => {
        const transaction = await second.transaction()
        await transaction.send({ topic: where, messages: [{ value: 'last' }] })
        await transaction.commit()
      })
      await assert.rejects(zombie.commit(), /epoch|fenced|newer producer/i)
    })
    assert.deepEqual(text(await read(where, 1)), ['last'])
  },

  async group(name) {
    const where = await topic(name, 4)
    const groupId = `${prefix}-${name}`
    const seen = new Set()
    const members = [0, 1].map(() => kafka.consumer({
      groupId, partitionAssigners: [PartitionAssigners.roundRobin], heartbeatInterval: 200, sessionTimeout: 6000,
    }))
    for (const member of members) {
      await member.connect()
      await member.subscribe({ topic: where, fromBeginning: true })
      member.run({ autoCommitThreshold: 1, eachMessage: async ({ message }) => { seen.add(message.value.toString()) } })
    }
    const until = async (good, what) => {
      for (const end = Date.now() + 30000; !(await good());) {
        assert.ok(Date.now() < end, what)
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    }
    await until(async () => {
      const { groups: [group] } = await admin.describeGroups([groupId])
      return group.state === 'Stable' && group.members.length === 2
    }, 'two members')
    await withProducer({}, (producer) => producer.send({
      topic: where, messages: Array.from({ length: 40 }, (_, i) => ({ value: String(i), partition: i % 4 })),
    }))
    await until(async () => seen.size === 40, 'all records')
    for (const member of members) await member.disconnect()
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [where] })
    assert.equal(partitions.reduce((sum, { offset }) => sum + Number(offset), 0), 40)
  },

  async administration(name) {
    const where = await topic(name, 2)
    await withProducer({}, (producer) => producer.send({
      topic: where, messages: Array.from({ length: 10 }, (_, i) => ({ value: String(i), partition: 0 })),
    }))
    await admin.createPartitions({ topicPartitions: [{ topic: where, count: 5 }] })
    await eventually(async () => (await admin.fetchTopicMetadata({ topics: [where] })).topics[0].partitions.length === 5)
    const resource = { type: ConfigResourceTypes.TOPIC, name: where }
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '1234567' }] }] })
    const { resources: [{ configEntries }] } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
    assert.equal(configEntries.find(({ configName }) => configName === 'retention.ms').configValue, '1234567')
    await admin.deleteTopicRecords({ topic: where, partitions: [{ partition: 0, offset: '4' }] })
    const offsets = await admin.fetchTopicOffsets(where)
    assert.deepEqual(offsets.find(({ partition }) => partition === 0), { partition: 0, offset: '10', high: '10', low: '4' })
    await admin.deleteTopics({ topics: [where] })
    await eventually(async () => !(await admin.listTopics()).includes(where))
  },

  async 'group-administration'(name) {
    const where = await topic(name)
    const groupId = `${prefix}-${name}`
    await admin.setOffsets({ groupId, topic: where, partitions: [{ partition: 0, offset: '0' }] })
    assert.ok((await admin.listGroups()).groups.some((group) => group.groupId === groupId))
    await admin.deleteGroups([groupId])
    assert.ok(!(await admin.listGroups()).groups.some((group) => group.groupId === groupId))
  },

  async 'offsets-by-time'(name) {
    const where = await topic(name)
    const messages = Array.from({ length: 10 }, (_, i) => ({ value: String(i), timestamp: String(1700000000000 + 1000 * i) }))
    await withProducer({}, (producer) => producer.send({ topic: where, messages }))
    assert.deepEqual(await admin.fetchTopicOffsetsByTimestamp(where, 1700000006000), [{ partition: 0, offset: '6' }])
  },
}

// kafkajs does not retry these: a coordinator that is starting, a transaction that is ending.
const PASSING = /coordinator is loading|coordinator is not available|concurrent operation/

async function outcome(name) {
  for (let attempt = 1; ; attempt++) {
    try {
      await checks[name](`${name}-${attempt}`)
      return `PASS ${name}`
    } catch (error) {
      const reason = String(error && error.message).split('\n')[0]
      if (attempt === 10 || !PASSING.test(reason)) return `FAIL ${name}: ${reason}`
    }
  }
}

async function main() {
  await admin.connect()
  for (const name of Object.keys(checks).sort()) {
    console.log(await outcome(name))
  }
  await admin.disconnect()
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
