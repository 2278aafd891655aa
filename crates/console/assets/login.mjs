// The question for name and password. It stands over the page, which keeps all that was typed.

import { Failure, logIn } from './api.mjs';
import { cluster } from './cluster.mjs';
import { ask, field, mistake } from './dialog.mjs';
import { h } from './dom.mjs';
import { t } from './texts.mjs';

export async function askForLogin(user = '') {
  const hadSession = user !== '';
  const done = await ask({
    title: t(hadSession ? 'loginAgain' : 'login'),
    body: [
      h('p', {}, t(hadSession ? 'loginAgainWhy' : 'loginWhy')),
      field(t('userName'), h('input', { name: 'name', value: user, autocomplete: 'username', required: true, autofocus: !hadSession, spellcheck: 'false', autocapitalize: 'off' })),
      field(t('password'), h('input', { name: 'password', type: 'password', autocomplete: 'current-password', required: true, autofocus: hadSession })),
    ],
    button: t('logIn'),
    act: async ({ name, password }) => {
      const known = cluster.inOrder();
      let failed = null;
      // The first list of members may be under way.
      for (const member of known.length > 0 ? known : [{ endpoint: { id: '0' }, isUp: true }]) {
        // A password is not shown to what answers in a member's place, so a member has to have said who it is.
        if (!member.isUp) await cluster.ask(member);
        if (member.isElsewhere || member.error?.isUnreachable) {
          failed = member.error;
          continue;
        }
        try {
          await logIn(member.endpoint, name, password);
          return true;
        } catch (error) {
          failed = error;
          if (error instanceof Failure && error.isUnreachable) continue;
          if (/invalid user ID or password|user name not found/.test(error.message)) throw mistake(t('loginRefused'));
          if (/authentication is not enabled/.test(error.message)) throw mistake(t('loginNotEnabled'));
          throw error;
        }
      }
      throw failed;
    },
  });
  // What was shown to nobody, or to somebody else, is asked for again.
  if (done) cluster.schedule(0);
  return done === true;
}
