// The part of kafkajs in conformance/test_login_table.py. Reads ways to log in from stdin, as JSON. For each of them, it
// prints a line: the topic, and what was read or the error.
'use strict'

const fs = require('node:fs')
const { Kafka, logLevel } = require('kafkajs')

const VALUES = ['one', 'two', 'three']

// The fields ca, certificate and key are files. Without a mechanism, the certificate is the login.
function options({ address, protocol, mechanism, user, password, token, ca, certificate, key }) {
  const made = { brokers: address.split(','), logLevel: logLevel.NOTHING }
  if (protocol.endsWith('SSL')) {
    made.ssl = { ca: fs.readFileSync(ca) }
    if (!mechanism) Object.assign(made.ssl, { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) })
  }
  if (mechanism === 'OAUTHBEARER') {
    made.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) }
  } else if (mechanism) {
    made.sasl = { mechanism: mechanism.toLowerCase(), username: user, password }
  }
  return made
}

async function connected(client, work) {
  try {
    await client.connect()
    return await work(client)
  } finally {
    await client.disconnect()
  }
}

async function read(consumer, topic) {
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = []
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`only ${found.length} records came`)), 60000)
    consumer.on(consumer.events.CRASH, ({ payload }) => { clearTimeout(timer); reject(payload.error) })
    const eachMessage = async ({ message }) => {
      if (found.push(message.value.toString()) === VALUES.length) { clearTimeout(timer); resolve() }
    }
    consumer.run({ eachMessage }).catch(reject)
  })
  return found
}

async function copied(way) {
  const kafka = new Kafka(options(way))
  await connected(kafka.admin(), (admin) => admin.createTopics({ waitForLeaders: true, topics: [{ topic: way.topic }] }))
  await connected(kafka.producer(), async (producer) => {
    for (const value of VALUES) await producer.send({ topic: way.topic, messages: [{ value }] })
  })
  // A consumer that stops waits this long, by default 5 s, for brokers without a partition of the topic.
  const maxWaitTimeInMs = 100
  return connected(kafka.consumer({ groupId: way.topic, maxWaitTimeInMs }), (consumer) => read(consumer, way.topic))
}

async function main() {
  for (const way of JSON.parse(fs.readFileSync(0))) {
    const outcome = await copied(way).then(
      (found) => `read ${found.join(' ')}`,
      (error) => `failed ${error.name}: ${error.message}`.replaceAll('\n', ' '),
    )
    console.log(`${way.topic} ${outcome}`)
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
