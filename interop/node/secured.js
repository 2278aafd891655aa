// The npm package etcd3 over TLS, as the user alice, who may use the keys below alice/. secured_clients.py sets the variables
// ENDPOINT, CACERT, CERT, KEY, USER_NAME, PASSWORD and TOKEN_SECONDS.
'use strict';

const assert = require('assert');
const fs = require('fs');
const { Etcd3 } = require('etcd3');

const user = process.env.USER_NAME;
const tokenSeconds = Number(process.env.TOKEN_SECONDS || 0);
const file = (name) => (process.env[name] ? fs.readFileSync(process.env[name]) : undefined);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function connect(password = process.env.PASSWORD) {
  return new Etcd3({
    hosts: `https://${process.env.ENDPOINT}`,
    credentials: { rootCertificate: file('CACERT'), privateKey: file('KEY'), certChain: file('CERT') },
    auth: user ? { username: user, password } : undefined,
  });
}

async function refused(promise, text) {
  await assert.rejects(async () => promise, (error) => error.message.includes(text) || assert.fail(error.message));
}

const cases = {
  async 'put and range'(client) {
    await Promise.all(Array.from({ length: 100 }, (_, n) => client.put(`alice/k${n}`).value(`v${n}`)));
    assert.strictEqual(await client.get('alice/k42').string(), 'v42');
    assert.strictEqual(Object.keys(await client.getAll().prefix('alice/k').strings()).length, 100);
    assert.strictEqual(Number((await client.delete().prefix('alice/k')).deleted), 100);
  },
  async 'transactions'(client) {
    await client.put('alice/t').value('1');
    const change = () => client.if('alice/t', 'Value', '==', '1').then(client.put('alice/t').value('2'))
      .else(client.get('alice/t')).commit();
    assert.strictEqual((await change()).succeeded, true);
    const second = await change();
    assert.strictEqual(second.succeeded, false);
    assert.strictEqual(second.responses[0].response_range.kvs[0].value.toString(), '2');
  },
  async 'what is not granted'(client) {
    await refused(client.put('bob').value('x').exec(), 'permission denied');
    await refused(client.getAll().prefix('b').strings(), 'permission denied');
  },
  async 'watch'(client) {
    const watcher = await client.watch().prefix('alice/w').create();
    const seen = [];
    watcher.on('put', (kv) => seen.push(kv.value.toString()));
    watcher.on('delete', () => seen.push(null));
    await client.put('alice/w1').value('a');
    await client.put('alice/w1').value('b');
    await client.delete().key('alice/w1');
    for (let n = 0; n < 100 && seen.length < 3; n++) await pause(100);
    assert.deepStrictEqual(seen, ['a', 'b', null]);
    await watcher.cancel();
  },
  async 'leases'(client) {
    const lease = client.lease(2);
    await lease.put('alice/leased').value('x');
    await pause(4500);
    assert.strictEqual(await client.get('alice/leased').string(), 'x');
    await lease.revoke();
    assert.strictEqual(await client.get('alice/leased').string(), null);
  },
  async 'its lock and election'(client) {
    await client.lock('alice/lock').ttl(5).do(async () => {
      await assert.rejects(client.lock('alice/lock').acquire());
    });
    const campaign = client.namespace('alice/').election('leader', 5).campaign('me');
    await new Promise((resolve, reject) => campaign.on('elected', resolve).on('error', reject));
    assert.strictEqual(await client.namespace('alice/').election('leader', 5).leader(), 'me');
    await campaign.resign();
  },
};
if (user) {
  cases['a wrong password'] = async () => {
    const wrong = connect('wrong');
    await refused(wrong.get('alice/t').string(), 'invalid user ID or password');
    wrong.close();
  };
  if (tokenSeconds > 0) {
    cases['a token that ends is replaced'] = async (client) => {
      await pause(1000 * tokenSeconds);
      await client.put('alice/again').value('x');
    };
  }
}

(async () => {
  let [passed, failed] = [0, 0];
  const client = connect();
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run(client);
      passed += 1;
      console.log(`ok      node ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  node ${name}: ${error.message}`);
    }
  }
  client.close();
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
})();
